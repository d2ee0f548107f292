"""Laws of the vision family alone: patches, places in the plane, heads and their losses; the rest: test_laws.py."""

import pytest
import torch
from family_variants import VITS, close, gradients_of
from native_models import randomise
from torch.nn.functional import conv2d, cross_entropy, interpolate
from transformers import ViTMAEConfig
from transformers.models.vit_mae.modeling_vit_mae import ViTMAEEmbeddings

from anyformer import (
    AnyformerViTConfig,
    AnyformerViTForImageClassification,
    AnyformerViTForMaskedImageModeling,
    AnyformerViTModel,
)

EXACT = {"atol": 1e-5, "rtol": 1e-5}  # fp32, same maths in another order of operations
GRADIENT = {"atol": 1e-6, "rtol": 1e-4}


def images(config, batch=2, sides=None, seed=0):
    height, width = sides or config.image_size
    return torch.randn(batch, config.num_channels, height, width, generator=torch.Generator().manual_seed(seed))


def masks(config, batch=2, seed=1):
    rows, columns = config.grid
    return torch.rand(batch, rows * columns, generator=torch.Generator().manual_seed(seed)) < 0.4


@pytest.fixture(params=VITS)
def config(request, tiny_vit_config):
    return tiny_vit_config(**VITS[request.param])


@pytest.fixture
def variant(config):
    # Eager where sdpa cannot: a softcap.
    return randomise(AnyformerViTForImageClassification(config))


# ------------------------------------------------------------------------------------------------ patches and places


def test_patches_are_cut_as_a_convolution_cuts_them_and_stand_behind_the_other_tokens(config):
    embeddings = randomise(AnyformerViTModel(config)).patch_embeddings
    pixels = images(config)
    kernel = embeddings.projection.weight.unflatten(1, (config.num_channels, 4, 4))
    expected = conv2d(pixels, kernel, embeddings.projection.bias, stride=4).flatten(2).transpose(1, 2)
    tokens = embeddings(pixels)
    assert tokens.shape[1] == config.num_prefix_tokens + 12
    torch.testing.assert_close(tokens[:, config.num_prefix_tokens :], expected, **EXACT)
    assert torch.equal(tokens[0, : config.num_prefix_tokens], tokens[1, : config.num_prefix_tokens])


def test_the_mask_token_replaces_masked_patches_and_no_other(config):
    embeddings = randomise(AnyformerViTModel(config, use_mask_token=True)).patch_embeddings
    pixels, masked = images(config), masks(config)
    plain, hidden = (embeddings(pixels, m)[:, config.num_prefix_tokens :] for m in (None, masked))
    assert torch.equal(hidden[~masked], plain[~masked])
    assert torch.equal(hidden[masked], embeddings.mask_token[0].expand(int(masked.sum()), -1))
    with pytest.raises(ValueError, match="use_mask_token=True"):
        randomise(AnyformerViTModel(config)).patch_embeddings(pixels, masked)


@torch.no_grad()
def test_without_positions_the_order_of_patches_does_not_matter_and_with_them_it_does(config):
    model = randomise(AnyformerViTModel(config))
    pixels = images(config)
    turned = pixels.clone()
    turned[..., :4, :4], turned[..., 8:, 4:8] = pixels[..., 8:, 4:8], pixels[..., :4, :4]
    here, there = (model(x).last_hidden_state for x in (pixels, turned))
    patches = config.num_prefix_tokens
    there[:, [patches, patches + 9]] = there[:, [patches + 9, patches]]
    same = (here - there).abs().max() < 1e-4
    assert same == (config.position_encoding == "none")


def test_sinusoidal_positions_are_those_of_masked_autoencoders(tiny_vit_config):
    config = tiny_vit_config(position_encoding="sinusoidal", image_size=[16, 16])
    theirs = ViTMAEEmbeddings(ViTMAEConfig(hidden_size=32, image_size=16, patch_size=4, num_channels=3))
    theirs.initialize_weights()
    scheme = AnyformerViTModel(config).position_encoding
    torch.testing.assert_close(scheme(torch.zeros(1, 17, 32), (4, 4)), theirs.position_embeddings.detach(), **EXACT)


def scores(config, first, second, grid):
    """q_i . k_j of vectors rotated at the places of two patches."""
    scheme = AnyformerViTModel(config).position_encoding
    cos, sin = scheme(torch.zeros(1), grid)
    from anyformer.modeling.positions import rotate

    drawn = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 1, config.head_dim, generator=drawn).expand(-1, -1, cos.shape[1], -1) for _ in range(2))
    q, k = rotate(q, cos[:, None], sin[:, None]), rotate(k, cos[:, None], sin[:, None])
    i, j = (config.num_prefix_tokens + row * grid[1] + column for row, column in (first, second))
    return (q[0, 0, i] * k[0, 0, j]).sum().item()


def test_rotary_scores_know_differences_of_rows_and_of_columns_alone(tiny_vit_config):
    for name in ("rotary", "half_rotary"):
        config = tiny_vit_config(**VITS[name])
        here = scores(config, (0, 0), (1, 2), (3, 4))
        assert scores(config, (1, 1), (2, 3), (3, 4)) == pytest.approx(here, abs=1e-5)
        assert scores(config, (0, 0), (2, 1), (3, 4)) != pytest.approx(here, abs=1e-3)
        # Twice as many patches on either side: two steps of the larger grid are one of the trained grid.
        assert scores(config, (1, 1), (3, 5), (6, 8)) == pytest.approx(here, abs=1e-5)


def test_tokens_in_front_are_not_turned_and_get_no_sines(tiny_vit_config):
    for name in ("rotary", "mae"):
        config = tiny_vit_config(**VITS[name] | {"num_register_tokens": 2})
        out = AnyformerViTModel(config).position_encoding(torch.zeros(1), (3, 4))
        cos, sin = out if name == "rotary" else (1 + out, out)
        assert torch.all(cos[:, :3] == 1) and torch.all(sin[:, :3] == 0) and cos.shape[1] == 15


def test_learned_positions_are_resized_as_a_picture_and_registers_have_none(tiny_vit_config):
    config = tiny_vit_config(num_register_tokens=2)
    scheme = randomise(AnyformerViTModel(config)).position_encoding
    out = scheme(torch.zeros(1), (5, 2))
    assert torch.equal(out[:, :1], scheme.weight[:, :1]) and not out[:, 1:3].any()
    picture = scheme.weight[:, 1:].view(1, 3, 4, 32).permute(0, 3, 1, 2)
    resized = interpolate(picture, size=(5, 2), mode="bicubic", align_corners=False)
    torch.testing.assert_close(out[:, 3:].view(1, 5, 2, 32).permute(0, 3, 1, 2), resized)


@torch.no_grad()
def test_images_of_another_size_are_refused_unless_positions_may_be_interpolated(variant):
    larger = images(variant.config, sides=(20, 12))
    with pytest.raises(ValueError, match=r"20 x 12 pixels, but image_size=\[12, 16\]; resize it or pass interpolate"):
        variant(larger)
    assert variant(larger, interpolate_pos_encoding=True).logits.shape == (2, 5)
    pixels = images(variant.config)
    assert torch.equal(variant(pixels).logits, variant(pixels, interpolate_pos_encoding=True).logits)
    with pytest.raises(ValueError, match="not cut evenly by patch_size=4"):
        variant(images(variant.config, sides=(20, 14)), interpolate_pos_encoding=True)


def test_what_an_image_cannot_be_is_one_sentence(tiny_vit_config):
    model = AnyformerViTForImageClassification(tiny_vit_config())
    with pytest.raises(ValueError, match="1 channels, but num_channels=3"):
        model(torch.zeros(1, 1, 12, 16))
    with pytest.raises(ValueError, match="pixel_values are missing"):
        model()
    with pytest.raises(ValueError, match="never packed"):
        model(torch.zeros(1, 3, 12, 16), position_ids=torch.arange(13)[None])


# ------------------------------------------------------------------------------------------------ heads and losses


@torch.no_grad()
def test_the_classifier_reads_the_class_token_or_the_mean_of_the_patches(variant):
    config, pixels = variant.config, images(variant.config)
    out = variant.model(pixels).last_hidden_state
    front = config.num_prefix_tokens
    read = out[:, front:].mean(1) if config.pooler_type == "mean" else out[:, 0]
    expected = variant.score(read)
    if variant.distillation_score is not None:
        expected = (expected + variant.distillation_score(out[:, 1])) / 2
    torch.testing.assert_close(variant(pixels).logits, expected)


@pytest.mark.parametrize(
    "fields", [{}, {"norm_position": "post"}, {"use_distillation_token": True, "distillation_head": True}]
)
def test_patches_that_no_head_reads_skip_the_last_feed_forward_part(tiny_vit_config, fields):
    model = AnyformerViTForImageClassification(tiny_vit_config(pooler_type="cls", **fields)).double().eval()
    pixels, labels, seen = images(model.config).double(), torch.tensor([0, 1]), []
    model.model.layers[-1].mlp.register_forward_hook(lambda module, inputs, outputs: seen.append(inputs[0].shape[1]))
    few = model(pixels, labels=labels)
    gradients = torch.autograd.grad(few.loss, list(model.parameters()))
    captured = model(pixels, labels=labels, output_hidden_states=True)
    expected = torch.autograd.grad(captured.loss, list(model.parameters()))
    prefix, (rows, columns) = model.config.num_prefix_tokens, model.config.grid
    assert seen == [prefix, prefix + rows * columns] and captured.hidden_states[-1].shape[1] == seen[1]
    torch.testing.assert_close(few.logits, captured.logits, atol=1e-12, rtol=0)
    for one, other in zip(gradients, expected):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_class_numbers_and_their_probabilities_have_one_loss_however_the_batch_is_cut(tiny_vit_config):
    model = randomise(AnyformerViTForImageClassification(tiny_vit_config())).train()
    pixels, labels = images(model.config, 6), torch.tensor([0, 3, 1, 4, 4, 2])
    one_hot = torch.nn.functional.one_hot(labels, 5).float()
    expected = gradients_of(model, lambda: model(pixels, labels=labels).loss)
    # Trainer counts the entries of labels: as many as classes for each image with probabilities.
    for targets, count in ((labels, torch.tensor(6)), (one_hot, torch.tensor(30)), (one_hot.double(), 30)):
        torch.testing.assert_close(model(pixels, labels=targets).loss, model(pixels, labels=labels).loss)

        def of_parts(targets=targets, count=count):
            cuts = (slice(0, 1), slice(1, 4), slice(4, 6))
            return sum(model(pixels[c], labels=targets[c], num_items_in_batch=count).loss for c in cuts)

        got = gradients_of(model, of_parts)
        for name, gradient in expected.items():
            torch.testing.assert_close(got[name], gradient, msg=name, **GRADIENT)


def test_labels_are_smoothed_where_it_is_asked(tiny_vit_config):
    model = randomise(AnyformerViTForImageClassification(tiny_vit_config()))
    pixels, labels = images(model.config), torch.tensor([0, 3])
    logits = model(pixels).logits
    plain, smooth = cross_entropy(logits, labels), cross_entropy(logits, labels, label_smoothing=0.1)
    torch.testing.assert_close(model(pixels, labels=labels).loss, plain)
    torch.testing.assert_close(model(pixels, labels=labels, label_smoothing=0.1).loss, smooth)
    one_hot = torch.nn.functional.one_hot(labels, 5).float()
    torch.testing.assert_close(model(pixels, labels=one_hot, label_smoothing=0.1).loss, smooth)


def test_each_head_of_a_distilled_model_has_its_own_labels(tiny_vit_config):
    model = randomise(AnyformerViTForImageClassification(tiny_vit_config(**VITS["deit"])))
    pixels, labels, teacher = images(model.config), torch.tensor([0, 3]), torch.tensor([1, 3])
    hidden = model.model(pixels).last_hidden_state
    own, other = cross_entropy(model.score(hidden[:, 0]), labels), model.distillation_score(hidden[:, 1])
    loss = model(pixels, labels=labels, distillation_labels=teacher).loss
    torch.testing.assert_close(loss, (own + cross_entropy(other, teacher)) / 2)
    torch.testing.assert_close(model(pixels, labels=labels).loss, (own + cross_entropy(other, labels)) / 2)


def test_several_labels_and_numbers_are_asked_for_by_problem_type(tiny_vit_config):
    model = randomise(AnyformerViTForImageClassification(tiny_vit_config(problem_type="multi_label_classification")))
    pixels, labels = images(model.config), torch.tensor([[1.0, 0, 0, 1, 1], [0, 0, 0, 0, 1]])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(model(pixels).logits, labels)
    torch.testing.assert_close(model(pixels, labels=labels).loss, expected)
    model = randomise(AnyformerViTForImageClassification(tiny_vit_config(num_labels=1)))
    numbers = torch.tensor([0.5, -1.0])
    torch.testing.assert_close(
        model(pixels, labels=numbers).loss, (model(pixels).logits[:, 0] - numbers).square().mean()
    )


def test_the_loss_of_masked_images_is_of_masked_pixels_and_the_same_however_the_batch_is_cut(config):
    model = randomise(AnyformerViTForMaskedImageModeling(config)).train()
    pixels, masked = images(config, 4), masks(config, 4)
    out = model(pixels, bool_masked_pos=masked)
    assert out.reconstruction.shape == pixels.shape
    seen = masked.view(4, 1, 3, 4).repeat_interleave(4, 2).repeat_interleave(4, 3).expand_as(pixels)
    torch.testing.assert_close(out.loss, (pixels - out.reconstruction)[seen].abs().mean())
    expected = gradients_of(model, lambda: model(pixels, bool_masked_pos=masked).loss)

    def of_parts():
        count = masked.sum()
        cuts = (slice(0, 1), slice(1, 4))
        return sum(model(pixels[c], bool_masked_pos=masked[c], num_items_in_batch=count).loss for c in cuts)

    for name, gradient in gradients_of(model, of_parts).items():
        torch.testing.assert_close(gradient, expected[name], msg=name, **GRADIENT)


def test_without_a_mask_there_is_a_picture_and_no_loss(tiny_vit_config):
    model = AnyformerViTForMaskedImageModeling(tiny_vit_config(encoder_stride=2))
    pixels = images(model.config)
    out = model(pixels)
    assert out.loss is None and out.reconstruction.shape == (2, 3, 6, 8)
    with pytest.raises(ValueError, match="encoder_stride=2 must equal patch_size=4"):
        model(pixels, bool_masked_pos=masks(model.config))
    model = AnyformerViTForMaskedImageModeling(tiny_vit_config())
    out = model(pixels, bool_masked_pos=torch.zeros(2, 12, dtype=torch.bool))
    assert out.loss == 0


# ------------------------------------------------------------------------------------------------ as all models


@torch.no_grad()
def test_a_hidden_token_is_seen_by_no_other(config):
    model = randomise(AnyformerViTModel(config))
    pixels = images(config)
    mask = torch.ones(2, config.num_prefix_tokens + 12, dtype=torch.long)
    mask[:, -1] = 0
    other = pixels.clone()
    other[..., -4:, -4:] += 1
    here, there = (model(x, attention_mask=mask).last_hidden_state[:, :-1] for x in (pixels, other))
    torch.testing.assert_close(here, there, **EXACT)
    assert not torch.allclose(model(pixels).last_hidden_state[:, :-1], here, atol=1e-3)


@torch.no_grad()
def test_outputs_hold_every_layer(variant):
    variant.set_attn_implementation("eager")
    pixels, length = images(variant.config), variant.config.num_prefix_tokens + 12
    out = variant(pixels, output_hidden_states=True, output_attentions=True)
    assert [tuple(x.shape) for x in out.hidden_states] == [(2, length, 32)] * 3
    assert [tuple(x.shape) for x in out.attentions] == [(2, 4, length, length)] * 2
    last = variant.model(pixels).last_hidden_state
    torch.testing.assert_close(variant.model.norm(out.hidden_states[-1]), last)  # before the last norm, as ViT's
    as_tuple = variant(pixels, return_dict=False)
    assert isinstance(as_tuple, tuple)
    torch.testing.assert_close(as_tuple[0], out.logits, **EXACT)  # without captured states fewer tokens are multiplied


def test_a_model_in_bf16_reads_pixels_in_fp32(tiny_vit_config):
    half = AnyformerViTForImageClassification(tiny_vit_config()).to(torch.bfloat16)
    assert half(images(half.config)).logits.dtype == torch.bfloat16


# ---- torch.export


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "rotary", "mae"])
def test_a_model_exported_with_interpolation_serves_every_size(tiny_vit_config, name):
    model = randomise(AnyformerViTForImageClassification(tiny_vit_config(**VITS[name])))
    example = {"pixel_values": images(model.config, sides=(20, 24)), "interpolate_pos_encoding": True}
    rows, columns = torch.export.Dim("rows", min=2, max=16), torch.export.Dim("columns", min=2, max=16)
    shapes = {"pixel_values": {2: 4 * rows, 3: 4 * columns}, "interpolate_pos_encoding": None}
    program = torch.export.export(model, (), example, dynamic_shapes=shapes, strict=False).module()
    for sides in ((12, 16), (20, 24), (8, 40)):
        inputs = {"pixel_values": images(model.config, sides=sides), "interpolate_pos_encoding": True}
        close(program(**inputs).logits, model(**inputs).logits, 1e-5)


def test_the_config_knows_its_grid_and_takes_one_number_or_two():
    assert AnyformerViTConfig(image_size=32, patch_size=8).grid == (4, 4)
    assert AnyformerViTConfig(image_size=[32, 16], patch_size=8).grid == (4, 2)
    config = AnyformerViTConfig(position_encoding="rotary")
    assert config.rope_parameters["rope_theta"] == 100.0


def test_patches_of_a_model_in_8_bits_keep_the_type_of_its_other_weights(tiny_vit_config):
    """bitsandbytes keeps int8 weights beside a bias in the model's type."""

    class EightBit(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.scale = linear.weight.abs().max().item() / 127
            whole = (linear.weight / self.scale).round().to(torch.int8)
            self.weight, self.bias = torch.nn.Parameter(whole, requires_grad=False), linear.bias

        def forward(self, x):
            return torch.nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)

    model = randomise(AnyformerViTModel(tiny_vit_config())).eval()
    projection, pixels = model.patch_embeddings.projection, torch.rand(2, 3, 12, 16)
    model.patch_embeddings.projection = eight_bit = EightBit(projection)
    found = model(pixels).last_hidden_state
    projection.weight.data = eight_bit.weight * eight_bit.scale
    model.patch_embeddings.projection = projection
    torch.testing.assert_close(found, model(pixels).last_hidden_state, **EXACT)
    model.patch_embeddings.projection = eight_bit
    assert model.to(torch.bfloat16)(pixels).last_hidden_state.dtype == torch.bfloat16
