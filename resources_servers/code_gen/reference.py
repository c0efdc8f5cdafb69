"""Parts of reference solutions for generated rows.

The source of each function is copied into gold responses, so they import nothing."""


def keep_multiples(numbers: list[int], factor: int) -> list[int]:
    return [n for n in numbers if n % factor == 0]


def keep_greater(numbers: list[int], bound: int) -> list[int]:
    return [n for n in numbers if n > bound]


def keep_small(numbers: list[int], bound: int) -> list[int]:
    return [n for n in numbers if abs(n) <= bound]


def add(numbers: list[int], amount: int) -> list[int]:
    return [n + amount for n in numbers]


def multiply(numbers: list[int], factor: int) -> list[int]:
    return [n * factor for n in numbers]


def remainders(numbers: list[int], modulus: int) -> list[int]:
    return [n % modulus for n in numbers]


def drop_first(numbers: list[int], count: int) -> list[int]:
    return numbers[count:]


def keep_every(numbers: list[int], distance: int) -> list[int]:
    return numbers[::distance]


def rotate(numbers: list[int], times: int) -> list[int]:
    start = times % len(numbers) if numbers else 0
    return numbers[start:] + numbers[:start]


def ascending(numbers: list[int]) -> list[int]:
    return sorted(numbers)


def backwards(numbers: list[int]) -> list[int]:
    return numbers[::-1]


def running_sums(numbers: list[int]) -> list[int]:
    sums, total = [], 0
    for n in numbers:
        total += n
        sums.append(total)
    return sums


def differences(numbers: list[int]) -> list[int]:
    return [numbers[place] - numbers[place - 1] for place in range(1, len(numbers))]


def without_repeats(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


def total(numbers: list[int]) -> int:
    return sum(numbers)


def largest(numbers: list[int]) -> int:
    return max(numbers, default=0)


def count_at_most(numbers: list[int], bound: int) -> int:
    return sum(n <= bound for n in numbers)


def alternating_sum(numbers: list[int]) -> int:
    return sum(numbers[::2]) - sum(numbers[1::2])


def spread(numbers: list[int]) -> int:
    return max(numbers, default=0) - min(numbers, default=0)


def longest_run(numbers: list[int]) -> int:
    best = length = 0
    for place, n in enumerate(numbers):
        length = length + 1 if place and numbers[place - 1] < n else 1
        best = max(best, length)
    return best


def best_block(numbers: list[int]) -> int:
    best = ending_here = 0
    for n in numbers:
        ending_here = max(0, ending_here + n)
        best = max(best, ending_here)
    return best


def inversions(numbers: list[int]) -> int:
    return sum(later < n for place, n in enumerate(numbers) for later in numbers[place + 1 :])


def best_short_block(numbers: list[int], most: int) -> int:
    sums = [sum(numbers[place : place + size]) for place in range(len(numbers)) for size in range(1, most + 1)]
    return max([0, *sums])


def longest_subsequence(numbers: list[int]) -> int:
    lengths: list[int] = []
    for place, n in enumerate(numbers):
        lengths.append(1 + max((lengths[i] for i in range(place) if numbers[i] < n), default=0))
    return max(lengths, default=0)


def count_subsets(numbers: list[int], modulus: int) -> int:
    ways = [1] + [0] * (modulus - 1)
    for n in numbers:
        ways = [ways[rest] + ways[(rest - n) % modulus] for rest in range(modulus)]
    return ways[0]


def best_apart(numbers: list[int]) -> int:
    best, best_before = 0, 0
    for n in numbers:
        best, best_before = max(best, best_before + n), best
    return best
