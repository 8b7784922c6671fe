"""What an operator is told about workloads that run: recorded signals and alerts."""
