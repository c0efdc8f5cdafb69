def opening(name: str) -> str:
    return f"{name} begins"
