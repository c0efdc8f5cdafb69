"""`python -m nemo_gym` is the same as `ng`."""

from nemo_gym.cli import main

if __name__ == "__main__":
    main()
