"""Programs of others that play our rollouts, and our environments in the form of other packages."""
