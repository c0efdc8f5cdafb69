def add_up(numbers):
    return sum(numbers)
