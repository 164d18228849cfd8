"""What is kept although the program is done with it.

finished_models: models whose training is over, beside the next.
"""
