"""20 bf16 updates on the same stored rollouts: packed, replicated, and replicated in another order of the batch.

The bar: packed stays as close to the replicated runs as these stay to each other. Writes curves.json and curves.png.

python bench/curves.py [--updates 20] [--seed 0] [--model FOLDER] [--out bench/results]
"""

import argparse
import copy
import json
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

from regrow.demo.batch import make_batch
from regrow.demo.learn import Master
from regrow.demo.rollout import choose_groups, sample_groups
from regrow.demo.run import MAX_NEW_TOKENS, load
from regrow.demo.task import Task
from regrow.demo.updates import packed_update, replicated_update
from regrow.models import NAME

STYLES = (
    {"color": "#1b7f5c", "lw": 2.2},
    {"color": "#b35c00", "lw": 1.4, "ls": "--"},
    {"color": "#56616d", "lw": 1.4, "ls": ":"},
)
CURVES = {"loss": "loss", "gradient_norm": "gradient norm"}


def stored_rollouts(reference, policy, tokenizer, seed, *, questions=2, group=8):
    """The batch of the first `questions` groups whose rewards differ; old log-probs by the fp32 model."""
    torch.manual_seed(seed)
    task = Task("chain_sum", tokenizer, seed=seed)
    for model in (reference, policy):
        model.set_attn_implementation(NAME)

    def sample():
        entries = task.questions(questions)
        return sample_groups(policy, tokenizer, task, entries, group_size=group, max_new_tokens=MAX_NEW_TOKENS)

    groups, _ = choose_groups(iter(sample, None), questions)
    batch = make_batch(groups)
    lengths = [int(mask.sum()) for mask in batch.response_masks]
    return replace(batch, old_logp=list(packed_update(reference, batch).logp.split(lengths)))


def permuted(batch, seed):
    """The same batch, its sequences in another order."""
    order = torch.randperm(len(batch.sequences), generator=torch.Generator().manual_seed(seed)).tolist()
    return replace(
        batch,
        **{
            field: [getattr(batch, field)[index] for index in order]
            for field in ("sequences", "prompt_lengths", "advantages", "old_logp")
        },
    )


def train(policy, weights, batch, update, attention, num_updates):
    """Loss and gradient norm of each update, from a fresh copy of the policy and of its fp32 weights."""
    model = copy.deepcopy(policy)
    model.set_attn_implementation(attention)
    master = Master(model, weights)
    curves = {name: [] for name in CURVES}
    for _ in range(num_updates):
        result = update(model, batch)
        curves["loss"].append(result.loss)
        curves["gradient_norm"].append(master.step(result.gradients))
    return curves


def distances(runs):
    """For each curve, root mean squares over updates: of the replicated runs' distance to each other (`spread`), and,
    as multiples of it, of packed's distance to the nearer of them at each update and of that to either, averaged.

    If packed were one more replicated run, the last would be 1, give or take what two runs can tell.
    """
    result = {}
    for name in CURVES:
        packed, *replicated = (torch.tensor(run[name], dtype=torch.float64) for run in runs.values())
        spread = root_mean_square(replicated[0] - replicated[1])
        apart = torch.stack([packed - other for other in replicated]).abs()
        result[name] = {
            "spread": spread,
            "nearer": root_mean_square(apart.amin(0)) / spread,
            "either": sum(map(root_mean_square, apart)) / len(apart) / spread,
        }
    return result


def root_mean_square(values):
    return values.square().mean().sqrt().item()


def draw(runs, path):
    """Both curves of all runs, above the runs' distances to the first replicated one."""
    figure = Figure(figsize=(9, 5.5), dpi=100, layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, height_ratios=(2, 1))
    first = runs["replicated"]
    for column, (key, label) in enumerate(CURVES.items()):
        for (name, run), style in zip(runs.items(), STYLES, strict=True):
            steps = range(1, len(run[key]) + 1)
            axes[0, column].plot(steps, run[key], label=name, **style)
            if run is not first:
                axes[1, column].plot(steps, [abs(a - b) for a, b in zip(run[key], first[key], strict=True)], **style)
        axes[0, column].set_title(label, fontsize=10)
        axes[0, column].set_ylim(bottom=0)
        axes[1, column].set(xlabel="update", ylabel="distance to\nreplicated")
        axes[1, column].xaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].legend(frameon=False)
    figure.savefig(path, format="png")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the questions and the samples")
    parser.add_argument("--model", help="a local transformers folder instead of SmolLM2's package")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    arguments = parser.parse_args()

    reference, tokenizer = load(arguments.model)
    weights = dict(reference.named_parameters())
    policy = copy.deepcopy(reference).bfloat16()
    batch = stored_rollouts(reference, policy, tokenizer, arguments.seed)
    runs = {"packed": train(policy, weights, batch, packed_update, NAME, arguments.updates)}
    for name, ordered in (("replicated", batch), ("replicated, another order", permuted(batch, arguments.seed + 1))):
        runs[name] = train(policy, weights, ordered, replicated_update, "sdpa", arguments.updates)
    found = distances(runs)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "curves.json").write_text(json.dumps({"runs": runs, "distances": found}, indent=1) + "\n")
    draw(runs, arguments.out / "curves.png")
    for name, value in found.items():
        nearer, either = value["nearer"], value["either"]
        print(
            f"{CURVES[name]}: spread {value['spread']:.2e}, packed to the nearer {nearer:.2f}, to either {either:.2f}"
        )


if __name__ == "__main__":
    main()
