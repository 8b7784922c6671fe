// The provider's own main embeds files that its release process generates and its Go module
// lacks. This one embeds the same two files, which the builder minifies out of the module
// (cmd/pulumi-resource-kubernetes) into generated/ before compiling.
package main

import (
	_ "embed"

	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
)

//go:embed generated/schema.json
var schema []byte

//go:embed generated/terraform-mapping.json
var terraformMapping []byte

// version is set by the builder with -ldflags -X.
var version = "0.0.0"

func main() {
	provider.Serve("kubernetes", version, schema, terraformMapping)
}
