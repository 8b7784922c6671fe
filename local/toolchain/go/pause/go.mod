// The process that holds a pod's namespaces.
module embedding-serving.local/toolchain/pause

go 1.26
