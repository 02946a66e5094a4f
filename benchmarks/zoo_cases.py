"""The models of the zoo: layer globs, inputs, and further options of `attach` for each.

All are built with random weights and without downloads. The popular models have their usual widths and image sizes,
since a layout is hard to infer if a width is also a number of positions; they have fewer blocks. For other families,
small members are used.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

CLASSES = 10
BATCH = 3


@dataclass(frozen=True)
class Case:
    """One model, and how branches are attached to it."""

    library: str
    family: str
    model: str
    at: tuple[str, ...]  # globs; names differ between releases of a library, so the first one that matches is used
    layout: str  # the layout of the layers' features, read from the library's code
    build: Callable[[], nn.Module]
    sample: Callable[[], dict[str, Tensor] | Tensor]
    needs: Mapping[str, Any] = field(default_factory=dict)  # options that `attach` could not infer itself


def timm(
    family: str,
    model: str,
    at: str,
    layout: str,
    size: int = 64,
    needs: Mapping[str, Any] | None = None,
    **options: object,
) -> Case:
    """A case of timm: images of `size`, and options for `timm.create_model`."""

    def build() -> nn.Module:
        create = importlib.import_module("timm").create_model
        made: nn.Module = create(model, pretrained=False, num_classes=CLASSES, **options)
        return made

    return Case("timm", family, model, (at,), layout, build, lambda: images(size), needs or {})


def torchvision(model: str, at: str, layout: str) -> Case:
    """A case of torchvision: its classifiers take images of 224 px."""

    def build() -> nn.Module:
        made: nn.Module = getattr(importlib.import_module("torchvision").models, model)(num_classes=CLASSES)
        return made

    return Case("torchvision", model.partition("_")[0], model, (at,), layout, build, lambda: images(224))


def transformers(
    kind: str,
    model: str,
    at: str | tuple[str, ...],
    layout: str,
    sample: Callable[[], dict[str, Tensor]],
    needs: Mapping[str, Any] | None = None,
    **options: object,
) -> Case:
    """A case of transformers: a model type, one of its classes, and options for its configuration."""

    def build() -> nn.Module:
        library = importlib.import_module("transformers")
        config = library.AutoConfig.for_model(kind, num_labels=CLASSES, **options)
        made: nn.Module = getattr(library, model)(config)
        return made

    globs = (at,) if isinstance(at, str) else at
    return Case("transformers", kind, model, globs, layout, build, sample, needs or {})


def images(size: int) -> Tensor:
    """Random pictures."""
    return torch.randn(BATCH, 3, size, size)


def pixels(size: int = 224) -> Callable[[], dict[str, Tensor]]:
    """Random pictures, under the name that transformers gives them."""
    return lambda: {"pixel_values": images(size)}


def tokens() -> dict[str, Tensor]:
    """Random words of one length."""
    # The last one is the end of a sequence for T5 and BART, whose classifiers read that position; 0 is padding.
    ids = torch.randint(3, 60, (BATCH, 9))
    ids[:, -1] = 1
    return {"input_ids": ids}


def waves() -> dict[str, Tensor]:
    """A tenth of a second of noise."""
    return {"input_values": torch.randn(BATCH, 1600)}


def spectrograms() -> dict[str, Tensor]:
    """Noise in Whisper's 80 bands."""
    return {"input_features": torch.randn(BATCH, 80, 32)}


def text(kind: str, model: str, at: str, needs: Mapping[str, Any] | None = None, **options: object) -> Case:
    """A model of transformers that reads text."""
    return transformers(kind, model, at, "BTD", tokens, needs, **options)


def vision(kind: str, model: str, at: str | tuple[str, ...], size: int = 32, **options: object) -> Case:
    """A vision transformer of transformers."""
    return transformers(kind, model, at, "BTD", pixels(size), **options)


TIMM = (
    timm("beit", "beit_base_patch16_224", "blocks.*", "BTD", 224, depth=2),
    timm("cait", "cait_xxs24_224", "blocks.*", "BTD", img_size=64, depth=3),
    timm("coat", "coat_lite_tiny", "serial_blocks*.*", "BTD", img_size=64),
    timm("coatnet", "coatnet_0_rw_224", "stages.*", "BCHW", 224),
    timm("convit", "convit_tiny", "blocks.*", "BTD", img_size=64),
    timm("convmixer", "convmixer_768_32", "blocks.*", "BCHW"),
    timm("convnext", "convnext_tiny", "stages.*", "BCHW", 224, depths=(1, 1, 2, 1)),
    timm("convnext", "convnext_base", "stages.*.blocks.*", "BCHW", 224, depths=(1, 1, 2, 1)),
    timm("convnext", "convnextv2_tiny", "stages.*", "BCHW", 224, depths=(1, 1, 2, 1)),
    timm("crossvit", "crossvit_9_240", "blocks.*", "BTD", 240),
    timm("cspnet", "cspresnet50", "stages.*", "BCHW"),
    timm("davit", "davit_tiny", "stages.*", "BCHW"),
    timm("deit", "deit_base_distilled_patch16_224", "blocks.*", "BTD", 224, depth=2),
    timm("deit", "deit3_small_patch16_224", "blocks.*", "BTD", 224, depth=3),
    timm("densenet", "densenet121", "features.denseblock*", "BCHW"),
    timm("dla", "dla46_c", "level?", "BCHW"),
    timm("dpn", "dpn68", "features.conv*_*", "BCHW"),
    timm("edgenext", "edgenext_small", "stages.*", "BCHW"),
    timm("efficientformer", "efficientformer_l1", "stages.*", "BCHW BTD", 224),
    timm("efficientnet", "efficientnet_b0", "blocks.*", "BCHW", 224),
    timm("eva", "eva02_small_patch14_224", "blocks.*", "BTD", 224, depth=3),
    timm("fastvit", "fastvit_t8", "stages.*", "BCHW"),
    timm("focalnet", "focalnet_tiny_srf", "layers.*", "BCHW"),
    timm("gcvit", "gcvit_xxtiny", "stages.*", "BCHW", 224),
    timm("ghostnet", "ghostnet_050", "blocks.*", "BCHW"),
    timm("hgnet", "hgnetv2_b0", "stages.*", "BCHW"),
    timm("hiera", "hiera_tiny_224", "blocks.*", "BTD", 224, embed_dim=32),
    timm("hrnet", "hrnet_w18_small", "stage?", "BCHW"),
    timm("inception_next", "inception_next_atto", "stages.*", "BCHW"),
    timm("inception_v3", "inception_v3", "Mixed_*", "BCHW", 299, aux_logits=True),
    timm("levit", "levit_128s", "stages.*", "BTD", 224, {"layout": "BTD"}),
    timm("mambaout", "mambaout_femto", "stages.*", "BHWC"),
    timm("maxvit", "maxvit_tiny_tf_224", "stages.*", "BCHW", 224),
    timm("maxvit", "maxvit_small_tf_224", "stages.*", "BCHW", 224),
    timm("mlp_mixer", "mixer_b16_224", "blocks.*", "BTD", 224),
    timm("mobilenetv3", "mobilenetv3_large_100", "blocks.*", "BCHW", 224),
    timm("mobilevit", "mobilevit_xxs", "stages.*", "BCHW"),
    timm("mvitv2", "mvitv2_tiny", "stages.*", "BTD", img_size=64),
    timm("nest", "nest_tiny", "levels.*", "BCHW", 224),
    timm("nfnet", "nf_regnet_b0", "stages.*", "BCHW"),
    timm("pit", "pit_ti_224", "transformers.*", "BCHW", 224),
    timm("poolformer", "poolformer_s12", "stages.*", "BCHW"),
    timm("pvt_v2", "pvt_v2_b1", "stages.*", "BCHW", 224),
    timm("regnet", "regnety_016", "s?", "BCHW", 224),
    timm("repvgg", "repvgg_a0", "stages.*", "BCHW"),
    timm("repvit", "repvit_m0_9", "stages.*", "BCHW"),
    timm("res2net", "res2net50_26w_4s", "layer?", "BCHW"),
    timm("resnest", "resnest14d", "layer?", "BCHW"),
    timm("resnet", "resnet50", "layer?", "BCHW", 224, layers=(1, 1, 2, 1)),
    timm("resnetv2", "resnetv2_50", "stages.*", "BCHW"),
    timm("rexnet", "rexnet_100", "features.*", "BCHW"),
    timm("sequencer", "sequencer2d_s", "stages.*", "BHWC", img_size=64, layers=(1, 1, 1, 1)),
    timm("swin", "swin_tiny_patch4_window7_224", "layers.*", "BHWC", 224, depths=(2, 2, 2, 2)),
    timm("swin", "swin_base_patch4_window7_224", "layers.*", "BHWC", 224, depths=(2, 2, 2, 2)),
    timm("swin_v2", "swinv2_tiny_window8_256", "layers.*", "BHWC", img_size=64, window_size=4),
    timm("tiny_vit", "tiny_vit_5m_224", "stages.*", "BCHW"),
    timm("tnt", "tnt_s_patch16_224", "blocks.*", "BTD", needs={"output": 1}, img_size=64, depth=3),
    timm("twins", "twins_svt_small", "blocks.*.*", "BTD", img_size=64),
    timm("vgg", "vgg11", "features.*", "BCHW", mlp_ratio=0.05),
    timm("visformer", "visformer_tiny", "stage?.*", "BCHW", img_size=64),
    timm("vision_transformer", "vit_small_patch16_224", "blocks.*", "BTD", 224, depth=3),
    timm("vision_transformer", "vit_base_patch16_224", "blocks.*", "BTD", 224, depth=2, global_pool="avg"),
    timm("volo", "volo_d1_224", "network.*", "BHWC", 224),
    timm("xception", "xception41", "blocks.*", "BCHW"),
    timm("xcit", "xcit_nano_12_p16_224", "blocks.*", "BTD", img_size=64),
)

TORCHVISION = (
    torchvision("convnext_tiny", "features.*", "BCHW"),
    torchvision("densenet121", "features.denseblock?", "BCHW"),
    torchvision("efficientnet_b0", "features.*", "BCHW"),
    torchvision("maxvit_t", "blocks.*", "BCHW"),
    torchvision("mobilenet_v3_large", "features.*", "BCHW"),
    torchvision("resnet50", "layer?", "BCHW"),
    torchvision("swin_t", "features.*", "BHWC"),
    torchvision("vit_b_16", "encoder.layers.*", "BTD"),
)

# Sizes under the names of most text models; those of BERT's base, except for the number of layers.
LAYERS = {"num_hidden_layers": 2}
TEXT = {**LAYERS, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 64}
SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 64}
CAUSAL = {**TEXT, "num_key_value_heads": 4, "pad_token_id": 0}
LLAMA = {**CAUSAL, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192}
QWEN2 = {**CAUSAL, "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864}
QWEN3 = {**CAUSAL, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8}
VISION = {name: size for name, size in TEXT.items() if name != "vocab_size"}  # images of 224 in patches of 16
SMALL_CAUSAL = {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0}
SMALL_VISION = {
    **{name: size for name, size in SMALL.items() if name != "vocab_size"},
    "image_size": 32,
    "patch_size": 8,
}
SPEECH = {**SMALL, "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8), "mask_time_prob": 0.0,
          "num_conv_pos_embedding_groups": 4, "num_conv_pos_embeddings": 16}  # fmt: skip
CODERS = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64,
          "decoder_attention_heads": 2, "decoder_ffn_dim": 64, "vocab_size": 64}  # fmt: skip
STAGES = {"depths": (1, 1, 2, 1)}

TRANSFORMERS = (
    # Text, read in both directions. ALBERT calls one block several times; its last call counts.
    text("albert", "AlbertForSequenceClassification", "albert.encoder.albert_layer_groups.*", **SMALL),
    text("bart", "BartForSequenceClassification", "model.*coder.layers.*", **CODERS, pad_token_id=0, bos_token_id=2,
         eos_token_id=1, decoder_start_token_id=1),
    text("bert", "BertForSequenceClassification", "bert.encoder.layer.*", **TEXT),
    text("bert", "BertForTokenClassification", "bert.encoder.layer.*", **TEXT),
    text("convbert", "ConvBertForSequenceClassification", "convbert.encoder.layer.*", **SMALL),
    text("deberta-v2", "DebertaV2ForSequenceClassification", "deberta.encoder.layer.*", **SMALL),
    text("distilbert", "DistilBertForSequenceClassification", "distilbert.transformer.layer.*", vocab_size=64,
         n_layers=2),
    text("distilbert", "DistilBertForTokenClassification", "distilbert.transformer.layer.*", vocab_size=64, n_layers=2),
    text("electra", "ElectraForSequenceClassification", "electra.encoder.layer.*", **SMALL, embedding_size=16),
    text("fnet", "FNetForSequenceClassification", "fnet.encoder.layer.*", **SMALL),
    text("modernbert", "ModernBertForSequenceClassification", "model.layers.*", **SMALL, pad_token_id=0),
    text("mpnet", "MPNetForSequenceClassification", "mpnet.encoder.layer.*", **SMALL),
    text("roberta", "RobertaForSequenceClassification", "roberta.encoder.layer.*", **TEXT),
    text("roberta", "RobertaForTokenClassification", "roberta.encoder.layer.*", **TEXT),
    text("t5", "T5EncoderModel", "encoder.block.*", vocab_size=64, d_model=768, d_ff=3072, num_layers=2, num_heads=12),
    # Text, read left to right.
    text("bloom", "BloomForSequenceClassification", "transformer.h.*", vocab_size=64, hidden_size=32, n_layer=3,
         n_head=2, pad_token_id=0),
    text("gpt2", "GPT2ForSequenceClassification", "transformer.h.*", vocab_size=64, n_layer=2, pad_token_id=0),
    text("gpt2", "GPT2LMHeadModel", "transformer.h.*", vocab_size=64, n_layer=2, pad_token_id=0),
    text("gpt_neox", "GPTNeoXForSequenceClassification", "gpt_neox.layers.*", **SMALL, pad_token_id=0),
    text("llama", "LlamaForSequenceClassification", "model.layers.*", **LLAMA),
    text("llama", "LlamaForCausalLM", "model.layers.*", **LLAMA),
    text("mistral", "MistralForSequenceClassification", "model.layers.*", **SMALL_CAUSAL),
    text("opt", "OPTForSequenceClassification", "model.decoder.layers.*", vocab_size=64, hidden_size=32, ffn_dim=64,
         num_hidden_layers=3, num_attention_heads=2, word_embed_proj_dim=32, pad_token_id=0),
    text("qwen2", "Qwen2ForCausalLM", "model.layers.*", **QWEN2),
    text("qwen3", "Qwen3ForCausalLM", "model.layers.*", **QWEN3),
    text("qwen3_moe", "Qwen3MoeForSequenceClassification", "model.layers.*", **SMALL_CAUSAL, head_dim=16, num_experts=4,
         num_experts_per_tok=2, moe_intermediate_size=32),
    # Images.
    vision("beit", "BeitForImageClassification", ("beit.layers.*", "beit.encoder.layer.*"), **SMALL_VISION),
    vision("clip", "CLIPForImageClassification", "vision_model.encoder.layers.*", vision_config=SMALL_VISION),
    vision("deit", "DeiTForImageClassification", ("deit.layers.*", "deit.encoder.layer.*"), 224, **VISION),
    vision("dinov2", "Dinov2ForImageClassification", ("dinov2.layers.*", "dinov2.encoder.layer.*"), **SMALL_VISION),
    vision("siglip", "SiglipForImageClassification", "vision_model.encoder.layers.*", vision_config=SMALL_VISION),
    vision("vit", "ViTForImageClassification", ("vit.layers.*", "vit.encoder.layer.*"), 224, **VISION),
    transformers("convnext", "ConvNextForImageClassification", "convnext.encoder.stages.*", "BCHW", pixels(), **STAGES),
    transformers("convnextv2", "ConvNextV2ForImageClassification", "convnextv2.encoder.stages.*", "BCHW", pixels(),
                 **STAGES),
    transformers("mobilevit", "MobileViTForImageClassification", "mobilevit.encoder.layer.*", "BCHW", pixels(64),
                 image_size=64),
    transformers("resnet", "ResNetForImageClassification", "resnet.encoder.stages.*", "BCHW", pixels(), **STAGES),
    transformers("segformer", "SegformerForImageClassification",
                 ("segformer.stages.*.blocks.*", "segformer.encoder.block.*.*"), "BTD", pixels(),
                 depths=(1, 1, 1, 1)),
    transformers("segformer", "SegformerForSemanticSegmentation",
                 ("segformer.stages.*.blocks.*", "segformer.encoder.block.*.*"), "BTD", pixels(),
                 hidden_sizes=(64, 128, 320, 512), depths=(1, 1, 1, 1), decoder_hidden_size=768),
    transformers("swin", "SwinForImageClassification", "swin.encoder.layers.*", "BTD", pixels(), depths=(2, 2, 2, 2)),
    # Speech and sound. In training wav2vec2 and HuBERT skip layers at random.
    transformers("hubert", "HubertForSequenceClassification", "hubert.encoder.layers.*", "BTD", waves,
                 {"allow_skipped": True}, **SPEECH),
    transformers("wav2vec2", "Wav2Vec2ForSequenceClassification", "wav2vec2.encoder.layers.*", "BTD", waves,
                 {"allow_skipped": True}, **SPEECH),
    transformers("whisper", "WhisperForAudioClassification", "encoder.layers.*", "BTD", spectrograms, **CODERS,
                 max_source_positions=16),
)  # fmt: skip
