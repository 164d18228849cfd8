"""Who keeps what the program is done with: objects, hooks and calls, not lists of results.

garbage: garbage that Python's collector has not come to yet.
kept_by_calls: calls that have ended, and whose variables are kept.
kept_on_ctx: attributes of a Function's ctx, after its backward pass.
left_hooks: hooks that earlier calls left on modules.
linked_objects: nodes of trees and chains that lead to each other.
spent_inputs: inputs of objects that the model has been through with.
waiting_objects: what objects keep on the GPU while they wait.
"""
