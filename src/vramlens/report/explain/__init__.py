"""Explain: an explanation as text, Markdown and JSON.

story: the parts of the answer, and the one next step.
answer_words: the headline, how it came to that, the figures of a failure.
finding_words: findings, growth, steps, the device's memory, what is not known.
holder_tables: who holds the bytes of a heap, by line, module or category.
module_tree: the tree of modules.
origin: which run the recording comes from.
advice: the next command.
predicted_step: the same script predicted, after a failure whose need is not known.
json: the answer as data.
"""
