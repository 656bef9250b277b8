"""Runs the frameworks' own optimizers and writes what the update rules are tested against.

    /usr/bin/python3 goldens.py torch > torch.json               # PyTorch 1.13.1 (Debian's python3-torch)
    ../../../build/mxnet-venv/bin/python goldens.py mxnet > mxnet.json    # MXNet 1.9.1 (scripts/mxnet-env.sh)

Each case names a rule, its hyper-parameters, the first weights, and per step the gradient and the weights after it.
"""
import json
import sys

import numpy as np

STEPS, SIZE = 6, 12


def inputs(seed):
    rng = np.random.RandomState(seed)
    w = rng.randn(SIZE).astype(np.float32)
    grads = rng.randn(STEPS, SIZE).astype(np.float32)
    grads[1, 0] = 0
    return w, grads


def floats(array):
    return [float(x) for x in np.asarray(array, np.float32)]


class Case:
    def __init__(self, seed, rule, **hyper):
        self.rule, self.hyper = rule, hyper
        self.w, self.grads = inputs(seed)

    def get(self, name, default=0.0):
        return self.hyper.get(name, default)

    def done(self, weights):
        return dict(Rule=self.rule, Hyper={"Scale": 1, **self.hyper}, W=floats(self.w),
                    Steps=[dict(Grad=floats(g), W=w) for g, w in zip(self.grads, weights)])


def torch_cases():
    import torch

    def optimizer(c, p):
        lr, wd, momentum = c.get("LR"), c.get("WD"), c.get("Momentum")
        betas, eps = (c.get("Beta1"), c.get("Beta2")), c.get("Eps")
        return {
            "sgd_torch": lambda: torch.optim.SGD([p], lr, momentum, c.get("Dampening"), wd),
            "nesterov_torch": lambda: torch.optim.SGD([p], lr, momentum, 0, wd, nesterov=True),
            "adam_torch": lambda: torch.optim.Adam([p], lr, betas, eps, wd),
            "adamw_torch": lambda: torch.optim.AdamW([p], lr, betas, eps, wd),
            "adagrad_torch": lambda: torch.optim.Adagrad([p], lr, 0, wd, 0, eps),
            "rmsprop_torch": lambda: torch.optim.RMSprop([p], lr, c.get("Alpha"), eps, wd, momentum),
            "sparse_adam_torch": lambda: torch.optim.SparseAdam([p], lr, betas, eps),
        }[c.rule]()

    def run(c):
        p = torch.nn.Parameter(torch.tensor(c.w))
        opt = optimizer(c, p)
        for g in c.grads:
            p.grad = torch.tensor(g) * c.get("Scale", 1)
            if "Clip" in c.hyper:
                torch.nn.utils.clip_grad_value_([p], c.hyper["Clip"])
            if c.rule == "sparse_adam_torch":
                p.grad = torch.sparse_coo_tensor([list(range(SIZE))], p.grad, (SIZE,))
            opt.step()
            yield floats(p.detach())

    adam = dict(Beta1=0.9, Beta2=0.999, Eps=1e-8)
    for seed, (rule, hyper) in enumerate([
        ("sgd_torch", dict(LR=0.1)),
        ("sgd_torch", dict(LR=0.1, WD=0.01, Momentum=0.9, Scale=0.25, Clip=0.2)),
        ("sgd_torch", dict(LR=0.1, Momentum=0.9, Dampening=0.3)),
        ("nesterov_torch", dict(LR=0.1, WD=0.01, Momentum=0.9)),
        ("adam_torch", dict(LR=0.01, **adam)),
        ("adam_torch", dict(LR=0.01, WD=0.1, Scale=0.25, Clip=0.2, **adam)),
        ("adamw_torch", dict(LR=0.01, WD=0.1, **adam)),
        ("adagrad_torch", dict(LR=0.1, WD=0.01, Eps=1e-10)),
        ("rmsprop_torch", dict(LR=0.01, WD=0.01, Alpha=0.99, Eps=1e-8)),
        ("rmsprop_torch", dict(LR=0.01, Alpha=0.9, Eps=1e-8, Momentum=0.9)),
        ("sparse_adam_torch", dict(LR=0.01, **adam)),
        ("sparse_adam_torch", dict(LR=0.01, Scale=0.25, Clip=0.2, **adam)),
    ]):
        c = Case(seed, rule, **hyper)
        yield c.done(list(run(c)))


def mxnet_cases():
    np.bool = np.bool_
    import mxnet as mx

    def optimizer(c):
        common = dict(learning_rate=c.get("LR"), wd=c.get("WD"), rescale_grad=c.get("Scale", 1.0),
                      clip_gradient=c.hyper.get("Clip"))
        betas = dict(beta1=c.get("Beta1"), beta2=c.get("Beta2"), epsilon=c.get("Eps"))
        return {
            "sgd_mxnet": lambda: mx.optimizer.SGD(momentum=c.get("Momentum"), **common),
            "nag_mxnet": lambda: mx.optimizer.NAG(momentum=c.get("Momentum"), **common),
            "adam_mxnet": lambda: mx.optimizer.Adam(**betas, **common),
            "adagrad_mxnet": lambda: mx.optimizer.AdaGrad(eps=c.get("Eps"), **common),
            "rmsprop_mxnet": lambda: mx.optimizer.RMSProp(gamma1=c.get("Alpha"), epsilon=c.get("Eps"), **common),
            "ftrl_mxnet": lambda: mx.optimizer.Ftrl(lamda1=c.get("Lambda1"), beta=c.get("Beta"), **common),
            "lamb": lambda: mx.optimizer.LAMB(**betas, **common),
        }[c.rule]()

    def adamw(c):
        """The fused step of MXNet 2's AdamW, whose operator 1.9.1 already has."""
        w = mx.nd.array(c.w)
        mean, var = mx.nd.zeros(SIZE), mx.nd.zeros(SIZE)
        beta1, beta2 = c.get("Beta1"), c.get("Beta2")
        for t, g in enumerate(c.grads, 1):
            eta = c.get("LR") * (1 - beta2**t) ** 0.5 / (1 - beta1**t)
            mx.nd.contrib.adamw_update(w, mx.nd.array(g), mean, var, mx.nd.array([c.get("Scale", 1.0)]), out=w,
                                       lr=1, wd=c.get("WD"), eta=eta, beta1=beta1, beta2=beta2, epsilon=c.get("Eps"),
                                       clip_gradient=c.get("Clip", -1.0))
            yield floats(w.asnumpy())

    def run(c):
        if c.rule == "adamw_mxnet":
            yield from adamw(c)
            return
        opt, w = optimizer(c), mx.nd.array(c.w)
        state = opt.create_state(0, w)
        for g in c.grads:
            opt.update(0, w, mx.nd.array(g), state)
            yield floats(w.asnumpy())

    adam = dict(Beta1=0.9, Beta2=0.999, Eps=1e-8)
    lamb = dict(Beta1=0.9, Beta2=0.999, Eps=1e-6)
    for seed, (rule, hyper) in enumerate([
        ("sgd_mxnet", dict(LR=0.1, WD=0.01)),
        ("sgd_mxnet", dict(LR=0.1, WD=0.01, Scale=0.25, Clip=0.2)),
        ("sgd_mxnet", dict(LR=0.1, WD=0.01, Momentum=0.9, Scale=0.25, Clip=0.2)),
        ("nag_mxnet", dict(LR=0.1, WD=0.01)),
        ("nag_mxnet", dict(LR=0.1, WD=0.01, Momentum=0.9, Scale=0.25, Clip=0.2)),
        ("adam_mxnet", dict(LR=0.01, **adam)),
        ("adam_mxnet", dict(LR=0.01, WD=0.1, Scale=0.25, Clip=0.2, **adam)),
        ("adamw_mxnet", dict(LR=0.01, WD=0.1, **adam)),
        ("adamw_mxnet", dict(LR=0.01, WD=0.1, Scale=0.25, Clip=0.2, **adam)),
        ("adagrad_mxnet", dict(LR=0.1, WD=0.01, Eps=1e-7, Scale=0.25, Clip=0.2)),
        ("rmsprop_mxnet", dict(LR=0.01, WD=0.01, Alpha=0.9, Eps=1e-8, Scale=0.25, Clip=0.2)),
        ("lamb", dict(LR=0.01, WD=0.1, **lamb)),
        ("lamb", dict(LR=0.01, WD=0.1, Scale=0.25, Clip=0.2, **lamb)),
        ("ftrl_mxnet", dict(LR=0.1, Lambda1=0.01, Beta=1)),
        ("ftrl_mxnet", dict(LR=0.1, WD=0.1, Lambda1=0.5, Beta=0.1, Scale=0.25, Clip=0.2)),
    ]):
        c = Case(seed + 100, rule, **hyper)
        yield c.done(list(run(c)))


if __name__ == "__main__":
    cases = {"torch": torch_cases, "mxnet": mxnet_cases}[sys.argv[1]]()
    print("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]")
