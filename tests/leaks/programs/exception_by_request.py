"""An error handler files exceptions by request, for a status page: https://github.com/pytorch/pytorch/issues/82218"""

import os

import torch

import vramlens

TRUTH = {"leaks": [{"class": ["exception"], "owner": ["errors", "by_request"], "bytes_per_step": 4 * 500 * (256 + 1)}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Application:
    def __init__(self):
        self.handlers = {}
        self.state = {"errors": {}, "requests": 0}

    def route(self, name):
        def register(function):
            self.handlers[name] = function
            return function

        return register

    def dispatch(self, name, **arguments):
        self.state["requests"] += 1
        try:
            return self.handlers[name](**arguments)
        except Exception as error:
            self.state["errors"][self.state["requests"]] = error  # KEEPS
            # FIX: self.state["errors"][self.state["requests"]] = repr(error)
            return {"status": 500}


app = Application()


@app.route("embed")
def embed(texts):
    vectors = torch.rand(len(texts), 256, device=DEVICE)  # ALLOCATES
    norms = vectors.norm(dim=1)
    return {"status": 200, "vector": vectors[int(norms.argmax()) + len(texts)].tolist()}


watch = vramlens.LeakWatch()
statuses = []
for _ in range(17):
    statuses.append(app.dispatch("embed", texts=["text"] * 500)["status"])
    watch.step()
