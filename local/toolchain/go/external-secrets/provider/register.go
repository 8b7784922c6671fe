// Package register takes the place of External Secrets' pkg/provider/register, which brings in the
// clients of every cloud and doubles the packages to compile. These two need no account: fake holds
// its values in the store object, kubernetes reads Secrets of a cluster. A store with any other
// provider is not Ready: "unable to create client" in its status, and "failed to find registered
// store backend" in the log.
package register

import (
	_ "github.com/external-secrets/external-secrets/pkg/provider/fake"
	_ "github.com/external-secrets/external-secrets/pkg/provider/kubernetes"
)
