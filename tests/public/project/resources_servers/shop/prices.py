PRICES = {'apple': 3, 'pear': 4}
