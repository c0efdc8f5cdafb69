"""What only servers written for the public NeMo Gym import. Our own code uses none of it."""
