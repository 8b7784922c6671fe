//go:build tools

// Package tools names the programs to build, so that go.mod and go.sum cover them.
package tools

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
