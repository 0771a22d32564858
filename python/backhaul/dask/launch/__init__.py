"""Clusters whose workers have their own CPUs, memory, GPUs and network interfaces."""
