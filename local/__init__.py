"""The embedded cluster and everything that stands in for what a laptop lacks. Nothing in infra/ imports it."""
