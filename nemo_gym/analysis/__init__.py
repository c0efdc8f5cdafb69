"""What is done with stored rollouts: profile, reverify, verifier check, token check, export."""
