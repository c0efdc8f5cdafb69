"""Work on stored rollouts: profile, compare, reverify, check verifiers, export as training data."""
