"""What `./dev` does, in plain Python without dependencies."""
