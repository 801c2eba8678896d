//! Model directories as PyTorch, transformers and safetensors write them.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use super::model_files::{ModelFiles, needed};
use super::*;
use crate::model::Shape;
use crate::settings::Variant;

fn shape() -> Shape {
    Shape { layers: 2, heads: 2, width: 8, context: 16, vocabulary: 29, layer_norm_epsilon: 1e-5, variant: Variant::Gpt2 }
}

/// Names, dtypes and dimensions of a file.
type Tensors = Vec<(String, &'static str, Vec<usize>)>;

fn tensors(shape: &Shape) -> Tensors {
    shape.tensors().into_iter().map(|spec| (spec.name, "F32", spec.dimensions)).collect()
}

/// A safetensors file of zeros, which takes no room on the disk.
fn write(path: &Path, tensors: &Tensors) {
    let mut end = 0_usize;
    let mut header = Map::new();
    for (name, dtype, shape) in tensors {
        let first = end;
        let size = match *dtype {
            "F64" => 8,
            "F32" => 4,
            "F8_E4M3" => 1,
            _ => 2,
        };
        end += shape.iter().product::<usize>() * size;
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [first, end]}));
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
}

struct Model(tempfile::TempDir);

impl Model {
    fn new(shape: &Shape, tensors: &Tensors) -> Self {
        let model = Self(tempfile::tempdir().unwrap());
        model.put("config.json", shape.config_json(None).to_string());
        write(&model.path("model.safetensors"), tensors);
        model
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    fn open(&self) -> Result<ModelFiles, String> {
        ModelFiles::open(self.0.path()).map_err(|error| error.to_string())
    }

    fn names(&self) -> Vec<String> {
        let name = |path: PathBuf| path.strip_prefix(self.0.path()).unwrap().to_str().unwrap().to_owned();
        needed(self.0.path()).unwrap().into_iter().map(name).collect()
    }
}

#[test]
fn one_model_has_many_spellings() {
    let of = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = tensors(&shape());
        change(&mut tensors);
        Model::new(&shape(), &tensors).open().unwrap()
    };
    let renamed = |before: &'static str, after: &'static str| {
        move |tensors: &mut Tensors| tensors.iter_mut().for_each(|(name, ..)| *name = name.replace(before, after))
    };
    for after in ["", "module.transformer.", "_orig_mod.transformer.", "model.transformer.", "gpt2.", "_orig_mod.module."] {
        of(&renamed("transformer.", after));
    }
    of(&renamed("ln_f.weight", "ln_f.gamma"));
    let head = |tensors: &mut Tensors| tensors.push(("lm_head.weight".to_owned(), "F32", vec![29, 8]));
    assert!(of(&head).head.is_some(), "tied, stored twice");
    let only_head = |tensors: &mut Tensors| tensors[0].0 = "lm_head.weight".to_owned();
    let model = of(&only_head);
    assert!(model.head.is_none() && model.stored("transformer.wte.weight").name == "lm_head.weight");
    of(&|tensors| tensors.push(("h.1.attn.bias".to_owned(), "F32", vec![1, 1, 16, 16])));
    for head in ["score.weight", "v_head.summary.bias", "module.multiple_choice_head.summary.weight"] {
        of(&|tensors| tensors.push((head.to_owned(), "F32", vec![2, 8])));
    }
    of(&|tensors| tensors.iter_mut().for_each(|tensor| tensor.1 = "BF16"));
    let fairseq = Shape { variant: Variant::Fairseq, ..shape() };
    let parts = |spec| {
        let (names, size) = model_files::parts(&spec, Variant::Fairseq);
        names.into_iter().map(move |name| (name, "F32", size.clone()))
    };
    let mut xglm: Tensors = fairseq.tensors().into_iter().flat_map(parts).collect();
    xglm.push(("model.embed_positions.weights".to_owned(), "F32", vec![18, 8]));
    xglm[0].0 = "lm_head.weight".to_owned();
    Model::new(&fairseq, &xglm).open().unwrap();
}

type Change<'a> = &'a dyn Fn(&mut Tensors);

#[test]
fn what_does_not_fit_is_named() {
    let refused = |change: Change<'_>| {
        let mut tensors = tensors(&shape());
        change(&mut tensors);
        Model::new(&shape(), &tensors).open().unwrap_err()
    };
    let cases: [(Change<'_>, &str); 8] = [
        (&|tensors| drop(tensors.pop()), "tensor transformer.ln_f.bias is missing"),
        (&|tensors| tensors[2].2 = vec![5], "transformer.h.0.ln_1.weight has dimensions [5], config.json calls for [8]"),
        (&|tensors| tensors[2].1 = "I16", "transformer.h.0.ln_1.weight has dtype I16"),
        (&|tensors| tensors.push(("adapter.weight".to_owned(), "F32", vec![2, 8])), "adapter.weight does not belong"),
        (
            &|tensors| tensors.push(("wte.weight".to_owned(), "F32", vec![29, 8])),
            "tensor transformer.wte.weight is there twice, as transformer.wte.weight in ",
        ),
        (
            &|tensors| tensors.push(("lm_head.weight".to_owned(), "F32", vec![30, 8])),
            "lm_head.weight differs from the token embedding",
        ),
        (&|tensors| tensors.push(("lm_head.weight".to_owned(), "F8_E4M3", vec![29, 8])), "lm_head.weight has dtype F8_E4M3"),
        (&|tensors| tensors[0].2 = vec![32, 8], "has dimensions [32, 8], config.json calls for [29, 8]"),
    ];
    for (change, expected) in cases {
        let message = refused(change);
        assert!(message.contains(expected), "{message}");
    }
    let mut untied = tensors(&shape());
    untied.push(("lm_head.weight".to_owned(), "F32", vec![29, 8]));
    let model = Model::new(&shape(), &untied);
    let mut bytes = std::fs::read(model.path("model.safetensors")).unwrap();
    *bytes.last_mut().unwrap() = 1;
    model.put("model.safetensors", bytes);
    assert!(model.open().unwrap_err().contains("lm_head.weight differs"), "seen at a glance");
}

/// A run that diverged leaves such.
#[test]
fn weights_that_are_no_numbers_are_refused() {
    // Longer than what is looked at from either end.
    let shape = Shape { vocabulary: 2_900, ..shape() };
    let with = |dtype: &'static str, number: &[u8], is_last: bool| {
        let mut tensors = tensors(&shape);
        for tensor in &mut tensors {
            tensor.1 = dtype;
        }
        let model = Model::new(&shape, &tensors);
        let path = model.path("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let first = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let place = first + if is_last { (8 * shape.vocabulary - 1) * number.len() } else { 0 };
        bytes[place..place + number.len()].copy_from_slice(number);
        std::fs::write(&path, bytes).unwrap();
        model.open().err().map(|message| message.replace(&model.0.path().display().to_string(), ""))
    };
    let of = |dtype, number: &[u8]| {
        let [first, last] = [false, true].map(|is_last| with(dtype, number, is_last));
        assert_eq!(first, last, "{dtype}");
        first
    };
    for (dtype, number) in [
        ("F32", &f32::NAN.to_le_bytes()[..]),
        ("F32", &f32::NEG_INFINITY.to_le_bytes()),
        ("F64", &1e300_f64.to_le_bytes()),
        ("F16", &0x7E00_u16.to_le_bytes()),
        ("BF16", &0xFF80_u16.to_le_bytes()),
    ] {
        assert!(of(dtype, number).unwrap().contains("tensor transformer.wte.weight holds NaN or infinity"), "{dtype}");
    }
    for (dtype, number) in
        [("F32", &f32::MAX.to_le_bytes()[..]), ("F16", &0x7BFF_u16.to_le_bytes()), ("BF16", &0xFF7F_u16.to_le_bytes())]
    {
        assert_eq!(of(dtype, number), None, "{dtype}");
    }
}

#[test]
fn pointers_of_git_lfs_are_named_in_every_place() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 548105171\n";
    for name in ["model.safetensors", "config.json", "model.safetensors.index.json", "pytorch_model.bin"] {
        let model = Model::new(&shape(), &tensors(&shape()));
        if name != "config.json" {
            std::fs::remove_file(model.path("model.safetensors")).unwrap();
        }
        model.put(name, pointer);
        let message = model.open().unwrap_err();
        assert!(message.contains(&format!("{name} is a pointer of git-lfs")) && message.contains("git lfs pull"), "{message}");
    }
}

#[test]
fn what_lies_there_instead_is_named() {
    let model = Model::new(&shape(), &tensors(&shape()));
    model.put("model.safetensors", "<!DOCTYPE html><html><head><title>404</title></head></html>");
    let message = model.open().unwrap_err();
    assert!(message.contains("is text, and no file of weights: it begins with \"<!DOCTYPE html><html>"), "{message}");
    for (name, expected) in [
        ("adapter_config.json", "adapters of peft"),
        ("tf_model.h5", "weights for TensorFlow"),
        ("model.ckpt.index", "weights for TensorFlow"),
        ("flax_model.msgpack", "weights for Flax"),
        ("gpt2.Q4_K_M.gguf", "weights for llama.cpp"),
        ("ckpt.pt", "a checkpoint of nanoGPT"),
        ("zero_to_fp32.py", "a checkpoint of DeepSpeed, of which `python zero_to_fp32.py . weights` makes weights"),
        ("mp_rank_00_model_states.pt", "a checkpoint of DeepSpeed"),
        ("model.fp16.safetensors", "the weights of a variant"),
        ("snapshots", "name the folder in its snapshots/"),
        ("checkpoint-500", "name the folder of one of them"),
    ] {
        let model = Model(tempfile::tempdir().unwrap());
        model.put(name, "");
        let message = model.open().unwrap_err();
        assert!(message.contains("has no config.json; it ") && message.contains(expected), "{message}");
        model.put("config.json", shape().config_json(None).to_string());
        let message = model.open().unwrap_err();
        assert!(message.contains("pytorch_model.bin.index.json; it ") && message.contains(expected), "{message}");
    }
    let empty = Model(tempfile::tempdir().unwrap()).open().unwrap_err();
    assert!(empty.ends_with("has no config.json"), "{empty}");
    let linked = Model(tempfile::tempdir().unwrap());
    linked.put("config.json", shape().config_json(None).to_string());
    std::os::unix::fs::symlink("../../blobs/0a1b", linked.path("model.safetensors")).unwrap();
    let message = linked.open().unwrap_err();
    assert!(message.ends_with("; its model.safetensors is a link, and no file is where it leads"), "{message}");
    let mut adapted = tensors(&shape());
    adapted.push(("adapter.weight".to_owned(), "F32", vec![2, 8]));
    let message = Model::new(&shape(), &adapted).open().unwrap_err();
    assert!(message.contains("tensor adapter.weight does not belong"), "by its own name: {message}");
}

#[test]
fn a_head_of_another_precision_is_compared_by_its_numbers() {
    let mut stored = tensors(&shape());
    stored.push(("lm_head.weight".to_owned(), "BF16", vec![29, 8]));
    let model = Model::new(&shape(), &stored);
    let path = model.path("model.safetensors");
    let zeros = std::fs::read(&path).unwrap();
    let first = 8 + u64::from_le_bytes(zeros[..8].try_into().unwrap()) as usize;
    let with = |embedding: f32, head: u16| {
        let mut bytes = zeros.clone();
        bytes[first..first + 4].copy_from_slice(&embedding.to_le_bytes());
        let at = bytes.len() - 29 * 8 * 2;
        bytes[at..at + 2].copy_from_slice(&head.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        model.open().map(drop)
    };
    assert_eq!(with(1.0, 0x3f80), Ok(()));
    for (embedding, head) in [(1.01, 0x3f81), (0.0, 0x3f80)] {
        assert!(with(embedding, head).unwrap_err().contains("lm_head.weight differs from the token embedding"), "{embedding}");
    }
}

/// 6 GB, of which the header is read.
#[test]
fn a_model_of_any_size_is_checked_by_its_header() {
    let large = Shape { layers: 48, heads: 25, width: 1600, context: 1024, vocabulary: 50_257, ..shape() };
    let model = Model::new(&large, &tensors(&large));
    assert!(model.path("model.safetensors").metadata().unwrap().len() > 6_000_000_000);
    assert_eq!(model.open().unwrap().shape.parameters(), 1_557_611_200);
    let file = File::options().write(true).open(model.path("model.safetensors")).unwrap();
    file.set_len(6_000_000_000).unwrap();
    assert!(model.open().unwrap_err().contains("it may be truncated"), "a byte that is missing is known by the length");
}

#[test]
fn only_what_a_run_reads_is_needed() {
    let model = Model::new(&shape(), &tensors(&shape()));
    for name in
        ["tf_model.h5", "pytorch_model.bin", "README.md", "optimizer.pt", "vocab.json", "merges.txt", "tokenizer_config.json"]
    {
        model.put(name, "");
    }
    std::fs::create_dir(model.path(".git")).unwrap();
    let tokenizer = ["vocab.json", "merges.txt", "tokenizer_config.json"];
    assert_eq!(model.names(), [&["config.json", "model.safetensors"][..], &tokenizer].concat());
    std::fs::remove_file(model.path("model.safetensors")).unwrap();
    assert_eq!(model.names(), [&["config.json", "pytorch_model.bin"][..], &tokenizer].concat());
    std::fs::remove_file(model.path("pytorch_model.bin")).unwrap();
    assert!(
        needed(model.0.path()).unwrap_err().to_string().contains("has none of model.safetensors, model.safetensors.index.json, ")
    );
    for index in ["pytorch_model.bin.index.json", "model.safetensors.index.json"] {
        model.put(index, r#"{"metadata": {}, "weight_map": {"a": "one", "b": "two", "c": "one"}}"#);
        assert_eq!(model.names(), [&["config.json", index, "one", "two"][..], &tokenizer].concat());
    }
    model.put("model.safetensors.index.json", r#"{"weight_map": {"a": "../one"}}"#);
    assert!(model.open().unwrap_err().contains("is not a file beside the index"));
}

#[test]
fn shards_of_either_kind_are_one_model() {
    let model = Model::new(&shape(), &tensors(&shape()));
    std::fs::remove_file(model.path("model.safetensors")).unwrap();
    let mut map = Map::new();
    for (number, part) in tensors(&shape()).chunks(9).enumerate() {
        let file = format!("model-{number}.safetensors");
        write(&model.path(&file), &part.to_vec());
        map.extend(part.iter().map(|(name, ..)| (name.clone(), file.clone().into())));
    }
    model.put("pytorch_model.bin.index.json", json!({ "weight_map": map }).to_string());
    model.open().unwrap();
    write(&model.path("model-1.safetensors"), &tensors(&shape())[8..].to_vec());
    let message = model.open().unwrap_err();
    let name = &tensors(&shape())[8].0;
    assert!(message.starts_with(&format!("tensor {name} is there twice, as {name} in ")), "{message}");
    assert!(
        message.contains(&format!("model-0.safetensors and as {name} in ")) && message.ends_with("; take one out"),
        "{message}"
    );
    std::fs::remove_file(model.path("model-1.safetensors")).unwrap();
    assert!(model.open().unwrap_err().contains("cannot open"));
}

/// Written by PyTorch 2.11.
fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/torch").join(name)
}

fn floats(file: &TensorFile, name: &str) -> Vec<f32> {
    let bytes = file.bytes(file.entry(name).unwrap());
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn both_forms_of_torch_save_are_read_where_they_lie() {
    for name in ["zip", "old"] {
        let file = TensorFile::open(&kept(name)).unwrap();
        assert_eq!(file.names(), ["h", "lm_head.weight", "transformer.wte.weight", "turned"], "{name}");
        for tied in ["lm_head.weight", "transformer.wte.weight"] {
            assert_eq!(floats(&file, tied), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
            let entry = file.entry(tied).unwrap();
            assert_eq!((entry.shape.as_slice(), &entry.strides), (&[2, 3][..], &None));
        }
        let turned = file.entry("turned").unwrap();
        assert_eq!((turned.shape.as_slice(), turned.strides.as_deref()), (&[3, 2][..], Some(&[1, 3][..])));
        assert_eq!(file.bytes(file.entry("h").unwrap()), [0x80, 0x3f, 0x80, 0x3f], "two of bf16");
    }
    assert_eq!(TensorFile::open(&kept("inside")).unwrap().names(), ["p"], "under the name of a training program's state");
}

#[test]
fn a_pickle_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pytorch_model.bin");
    let call = |module: &str, name: &str| format!("c{module}\n{name}\nX\x0a\x00\x00\x00touch here\u{85}").into_bytes();
    let mut bad: Vec<(Vec<u8>, &str)> = vec![
        (
            b"cos\nsystem\n(X\x01\x00\x00\x00atR.".to_vec(),
            "it names os.system, and loading it would run that; only tensors are read",
        ),
        (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.".to_vec(), "it names builtins.eval"),
        (b"ctorch.storage\n_load_from_bytes\n.".to_vec(), "it names torch.storage._load_from_bytes"),
        (b"(i__main__\nx\n.".to_vec(), "it does what no file of tensors needs (code 0x69)"),
        (b"}.".to_vec(), "it is no dictionary of tensors"),
        (b"N".to_vec(), "it ends too early"),
        (b"R.".to_vec(), "its stack is empty"),
    ];
    bad.push((call("posix", "system"), "it names posix.system"));
    // Deep and wide ones take no memory, and no stack when they go.
    bad.push((b")\x85".iter().copied().cycle().take(3 << 20).collect(), "values"));
    bad.push((b"N".repeat(3 << 20), "values"));
    // So do small ones that say one thing many times: a list, the name of a storage, that of a tensor.
    let repeated = |what: &[u8], often: &[u8]| [what, b"q\x000", &often.repeat(100_000), b"."].concat();
    let text = |bytes: usize| [&b"X"[..], &(bytes as u32).to_le_bytes(), &b"k".repeat(bytes)].concat();
    let list = [&b"]("[..], &b")".repeat(100_000), b"e"].concat();
    bad.push((repeated(&list, b"ccollections\nOrderedDict\nh\0\x85R"), "values"));
    let storage = [&b"(X\x07\0\0\0storagectorch\nFloatStorage\n"[..], &text(100_000), b"NNt"].concat();
    bad.push((repeated(&storage, b"h\0Q"), "its values take more than 64 MiB"));
    let tensor =
        [&b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0kNNtQK\0K\x01\x85K\x01\x85tR"
            [..]]
        .concat();
    let named = [&tensor[..], b"q\x010", &text(1_000), b"q\x000}(", &b"h\0h\x01".repeat(100_000), b"u."].concat();
    bad.push((named, "the names of its values take more than 64 MiB"));
    for (pickle, expected) in bad {
        let error = pickle::Pickle::read(&pickle).and_then(|pickle| pickle.tensors().map(drop)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    for (content, expected) in [
        (&b"\x80\x02cos\nsystem\n."[..], "is not a complete file of torch.save with nothing but tensors: it is some other pickle"),
        (b"\x01\x02", "is not a complete file of torch.save with nothing but tensors: it does not begin like one"),
        (b"", "is empty: it may be truncated, fetch or write it again"),
    ] {
        std::fs::write(&path, content).unwrap();
        let message = TensorFile::open(&path).unwrap_err().to_string();
        assert!(message.contains(&format!("pytorch_model.bin {expected}")), "{message}");
    }
    let expanded = TensorFile::open(&kept("expanded")).unwrap_err().to_string();
    assert!(expanded.contains("tensor transformer.ln_f.bias has numbers that stand for several each, as `expand`"), "{expanded}");
    for name in ["zip", "old", "inside"] {
        let whole = std::fs::read(kept(name)).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(TensorFile::open(&path).is_err(), "{length} of {} bytes of {name}", whole.len());
        }
    }
}

#[test]
fn a_header_that_no_model_has_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let header = 17_u64 << 20;
    std::fs::write(&path, header.to_le_bytes().into_iter().chain(*b"{").collect::<Vec<u8>>()).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(8 + header).unwrap();
    let message = TensorFile::open(&path).unwrap_err().to_string();
    assert!(message.contains("header too large"), "{message}");
}
