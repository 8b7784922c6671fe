//go:build tools

// Package tools names the programs to build, so that go.mod and go.sum cover them.
package tools

import _ "sigs.k8s.io/metrics-server/cmd/metrics-server"
