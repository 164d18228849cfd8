"""Full cards: the request at which a predicted program runs out of a card's memory.

card_watch: notices that request while the program runs, and what the program holds then.
predicted_heap: names of tensors that have no addresses.
card_failure: the failure as a recording, as a real run would have left it.
"""
