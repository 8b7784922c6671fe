"""Outside judges of the rendered manifests: tools that know Kubernetes and nothing of this blueprint.

A judge that is right is a reason to change an object. One that is not is suppressed in suppressions.yaml, for one check
and one family of objects, with the reason; docs/judges.md shows the list.
"""
