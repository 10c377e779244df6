"""bimetal.tensor.parts: embeddings and output layers by tokens, and losses of logits that are nowhere together."""

import chains
import ranks
import torch
import torch.distributed as dist
from chains import loss_of
from parted_models import PLAN, InParts, Plain, batches, learn_in_parts, make
from ranks import refused
from torch import nn

import bimetal
from bimetal.tensor.plan import plan_for
from bimetal.tensor.layers import Embeddings, Logits

GATHERED = PLAN | {"table": "vocabulary", "head": "vocabulary"}
APART = PLAN | {"table": "vocabulary", "head": "vocabulary:parts"}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}


def own_loss(model, batch):
    """The model's loss from its labels; for a module without a loss, its output layer's loss from logits in parts."""
    if not isinstance(model, Plain):
        return model(**batch).loss
    return model.head.cross_entropy(model(batch["input_ids"])[:, :-1], batch["labels"][:, 1:])


def trained(name, changed, options):
    """As one process trains, with the loss of logits in parts. Returns that, and how many tokens are here."""
    widths = set()

    def look(model):
        head = next(part for part in model.modules() if isinstance(part, Logits))
        head.register_forward_hook(lambda _, __, logits: widths.add(logits.shape[-1]))

    apart = options.pop("apart", name != "plain")
    plan = {"plan": APART if apart else GATHERED} if name == "plain" else {}
    model, found = learn_in_parts(name, changed, own_loss if apart else loss_of, look=look, **plan, **options)
    head, table = (next(part for part in model.modules() if isinstance(part, kind)) for kind in (Logits, Embeddings))
    assert widths == {len(head.weight) if apart else chains.WORDS}, widths
    assert len(table.weight) == len(head.weight)
    assert (table.weight is head.weight) == (name == "gpt2" and changed != UNTIED or changed == TIED)
    return [*found, len(head.weight)]


TRAININGS = {
    2: [("gpt2", {}, {"weights": [3, 1]}), ("gpt2", UNTIED, {"weights": [1, 3], "checkpointing": "saved tensors"}),
        ("gpt2", {}, {"follow": 0}), ("llama", {}, {"weights": [3, 1]}),
        ("llama", TIED, {"weights": [1, 2], "checkpointing": "saved tensors"}), ("mistral", {}, {}), ("qwen3", TIED, {"weights": [3, 1]}),
        ("plain", {}, {"weights": [3, 1], "apart": True}), ("plain", {}, {"weights": [1, 2]})],
    3: [("gpt2", {}, {"weights": [1, 2, 1]}), ("llama", {}, {"weights": [5, 2, 1], "follow": 0}), ("llama", TIED, {}),
        ("plain", {}, {"weights": [5, 2, 1], "apart": True}), ("plain", {}, {"weights": [1, 1, 2]})],
}


def outputs():
    """The outputs beside the loss, and the arguments of the loss itself."""
    def same(found, expected):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)

    model, whole = make("llama").float(), make("llama").float()
    bimetal.tensor.parts(model, weights=[3, 1])
    batch = batches("llama")[0]
    labels, rest = batch["labels"], {key: value for key, value in batch.items() if key != "labels"}
    expected = whole(**batch)
    found = model(**batch)
    same(found.loss, expected.loss)
    assert found.logits is None and "logits" not in found
    same(model(**rest).logits, expected.logits)
    as_tuple = model(**batch, return_dict=False)
    same(as_tuple[0], expected.loss)
    assert len(as_tuple) == len(whole(**batch, return_dict=False)) - 1
    same(model(**batch, num_items_in_batch=torch.tensor(7)).loss, whole(**batch, num_items_in_batch=torch.tensor(7)).loss)
    same(model(**batch, num_items_in_batch=7).loss, whole(**batch, num_items_in_batch=7).loss)
    same(model(**batch, shift_labels=labels).loss, whole(**batch, shift_labels=labels).loss)
    names = ("input_ids", "attention_mask", "position_ids", "cache", "inputs_embeds", "labels")
    same(model(*(batch.get(name) for name in names)).loss, expected.loss)
    assert model(**rest, labels=torch.full_like(labels, -100)).loss.isnan()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(**batch).loss
        assert low.dtype == torch.float32
        torch.testing.assert_close(low, whole(**batch).loss, rtol=2e-2, atol=0)
        low.backward()
    ranks.raises(bimetal.Error, lambda: model(**rest, labels=torch.full_like(labels, chains.WORDS)), "token 24 is not in")
    ranks.raises(bimetal.Error, lambda: model(torch.full_like(labels, -1)), "token -1 is not in")
    same(model(**batch).loss, expected.loss)  # after an error
    same(model(**rest).logits, expected.logits)
    model.eval()
    with torch.no_grad():
        found = model(**batch)
    same(found.logits, expected.logits)
    same(found.loss, expected.loss)
    model.train()
    model.loss_function = lambda logits, labels, **_: logits.sum()  # the user's own
    found = model(**batch)
    same([found.loss, found.logits], [expected.logits.sum(), expected.logits])
    return True


def otherwise():
    """A model that computes its loss by itself gets whole logits, and an embedding that others use, too, stays whole."""
    import transformers

    def make_model():
        torch.manual_seed(3)
        return transformers.GPT2DoubleHeadsModel(transformers.GPT2Config(
            vocab_size=chains.WORDS, n_positions=chains.LENGTH, n_embd=16, n_layer=2, n_head=4, bos_token_id=None,
            eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, summary_first_dropout=0.0)).double()
    model, whole = make_model(), make_model()
    bimetal.tensor.parts(model, weights=[3, 1])
    ids = batches("gpt2")[0]["input_ids"][:4].view(2, 2, -1)
    found, expected = model(ids, labels=ids), whole(ids, labels=ids)
    torch.testing.assert_close([found.loss, found.logits], [expected.loss, expected.logits], rtol=1e-12, atol=1e-12)
    assert isinstance(model.lm_head, Logits)
    outer = nn.Module()
    outer.model, outer.own = make("gpt2"), nn.Linear(16, chains.WORDS, bias=False)
    outer.own.weight = outer.model.lm_head.weight
    bimetal.tensor.parts(outer)
    return len(outer.own.weight), type(outer.model.lm_head).__name__, type(outer.model.transformer.wte).__name__


class Small(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.table, self.head = nn.Embedding(11, 3, **options), nn.Linear(3, 11)

    def forward(self, tokens):
        return self.head(self.table(tokens))


def padded():
    """A row that is not learnt, on any rank; nothing else is cut."""
    rows = {}
    for padding in (0, 9):
        torch.manual_seed(1)
        whole = Small(padding_idx=padding).double()
        model = Small(padding_idx=padding).double()
        model.load_state_dict(whole.state_dict())
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.5) for one in (model, whole)]
        parted = bimetal.tensor.parts(model, optimizers[0], plan={"table": "vocabulary", "head": "vocabulary"}, weights=[2, 1])
        tokens = torch.arange(11).view(1, 11)
        for one, optimizer in zip((model, whole), optimizers):
            nn.functional.cross_entropy(one(tokens)[0], tokens[0]).backward()
            optimizer.step()
        rows[padding] = len(model.table.weight)
        state = parted.state_dict(None)
        assert all((state[name] - value).abs().max() < 1e-12 for name, value in whole.state_dict().items())
    return rows


def refusals():
    parts = bimetal.tensor.parts

    def with_plan(plan, *fragments, code="invalid_argument", model=None):
        refused(lambda: parts(model or Small(), plan=plan), code, *fragments)

    both = {"table": "vocabulary", "head": "vocabulary"}
    with_plan({"table": "vocabulary=2"}, "\"vocabulary=2\"", "vocabulary:parts")
    with_plan({"tables": "vocabulary"}, "\"tables\" names no layer", "table, head")
    with_plan({"*.norm": "vocabulary"}, "LayerNorm: Linear, and Embedding", code="unsupported", model=Plain())
    with_plan(both, "Embedding without max_norm", code="unsupported", model=Small(max_norm=1.0))
    with_plan(both, "sparse", code="unsupported", model=Small(sparse=True))
    tied = Small()
    tied.table.weight = tied.head.weight
    with_plan({"head": "vocabulary"}, "table.weight and head.weight are one tensor", "each of them be \"vocabulary\"",
              code="unsupported", model=tied)
    with_plan(both | {"head": ["vocabulary", "vocabulary:parts"][dist.get_rank()]}, "rank 1 calls parts() with plan",
              code="call_mismatch")
    model = Small()
    parts(model, plan=both | {"head": "vocabulary:parts"})
    tokens = torch.arange(4)
    refused(lambda: model.head.cross_entropy(torch.zeros(4, 11), tokens), "invalid_argument", "a target for each row")
    refused(lambda: model.head.cross_entropy(model(tokens), tokens, reduction="none"), "invalid_argument", "\"none\"")
    chain = chains.make("sequence")
    parts(chain, plan={"0": "vocabulary", "6": "vocabulary"})
    refused(lambda: bimetal.pipeline.stages(chain), "unsupported", "has cut", "[mesh] stages, tensor")
    staged = bimetal.pipeline.stages(chains.make("sequence"), cuts=[2])
    refused(lambda: parts(staged.module, plan={"*": "vocabulary"}), "unsupported", "in stages")
    return True


class Vocabulary(InParts):
    def compare(self, world):
        results = ranks.several(world, [(trained, *training) for training in TRAININGS[world]], timeout=400)
        for number, (name, changed, options) in enumerate(TRAININGS[world]):
            with self.subTest(name, **changed, **options):
                of_rank = [rank[number] for rank in results]
                self.check(of_rank, name, changed)
                weights = options.get("weights", [1] * world)
                self.assertEqual([mine[4] for mine in of_rank],
                                 [chains.WORDS * weight // sum(weights) for weight in weights])

    @ranks.needs("transformers")
    def test_two_ranks(self):
        self.compare(2)

    @ranks.needs("transformers")
    def test_three_ranks(self):
        self.compare(3)

    @ranks.needs("transformers")
    def test_what_a_model_returns(self):
        self.assertEqual(ranks.on_ranks(2, outputs), [True] * 2)

    @ranks.needs("transformers")
    def test_models_of_other_ways(self):
        self.assertEqual(ranks.on_ranks(2, otherwise), [[chains.WORDS, "Linear", "Embedding"]] * 2)

    @ranks.needs("transformers")
    def test_presets_name_embedding_and_output_layer(self):
        for name in ("gpt2", "llama", "mistral", "qwen2", "qwen3"):
            cut = [layer.name for layer in plan_for(make(name), None).layers if layer.word.kind == "vocabulary"]
            self.assertEqual(cut, ["wte" if name == "gpt2" else "embed_tokens", "lm_head"])

    def test_a_row_that_is_not_learnt(self):
        self.assertEqual(ranks.on_ranks(2, padded), [{"0": 8, "9": 8}, {"0": 3, "9": 3}])

    def test_refusals(self):
        self.assertEqual(ranks.on_ranks(2, refusals), [True] * 2)


if __name__ == "__main__":
    ranks.main(globals())
