"""Profile a part of a server's work with the standard library's profiler."""

import cProfile
from pathlib import Path


class Profiler:
    """Writes `<name>.prof` into a folder, to be read with `python -m pstats`."""

    def __init__(self, name: str, base_profile_dir: str | Path, required_str: str | None = None) -> None:
        if " " in name:
            raise ValueError(f"The name of a profile is {name!r}; expected no spaces")
        self.name, self.base_profile_dir, self.required_str = name, Path(base_profile_dir), required_str
        self._profile = cProfile.Profile()

    def start(self) -> None:
        self._profile.enable()

    def stop(self) -> None:
        """End the profile and write it."""
        self._profile.disable()
        self.dump()

    def dump(self) -> None:
        """Write what was measured so far."""
        self.base_profile_dir.mkdir(parents=True, exist_ok=True)
        self._profile.dump_stats(self.base_profile_dir / f"{self.name}.prof")
