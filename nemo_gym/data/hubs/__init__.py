"""Where datasets are published: Hugging Face and GitLab."""
