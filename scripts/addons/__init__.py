"""The objects of the operators that a stack can install, taken out of the Go modules that they are published in."""
