"""Reading, merging, interpolating, checking and masking configuration."""
