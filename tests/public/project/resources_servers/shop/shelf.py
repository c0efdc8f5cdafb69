from prices import PRICES


def price_of(name):
    return PRICES[name]
