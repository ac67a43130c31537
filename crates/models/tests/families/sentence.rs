//! Vectors of texts against what sentence-transformers computes (`../golden/sentence_golden.py`).

use std::{fs, path::Path};

use regard_models::pretrained::{Folder, Input, Pooling, TextEncoder, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{close, copied, folder};

/// A model with the files of a case beside it.
fn case(name: &str) -> TempDir {
    let model = copied("bert-sentence");
    let tokenizer = folder("../scores/tokenizer.json");
    fs::copy(tokenizer, model.path().join("tokenizer.json")).unwrap();
    copy(&folder("../sentence").join(name), model.path());
    model
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
        }
    }
}

/// Changes a JSON file of a case, and gives why it is refused.
fn refused(name: &str, file: &str, change: impl FnOnce(&mut Value)) -> String {
    let model = case(name);
    let path = model.path().join(file);
    let mut settings = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut settings);
    fs::write(&path, settings.to_string()).unwrap();
    Pooling::open(model.path()).unwrap_err().to_string()
}

/// Compares the vectors of texts, by a case's own model and tokenizer.
fn expect_vectors(what: &str, opened: &TempDir, pooling: &Pooling, golden: [&Value; 3]) {
    let model = TextEncoder::open(&Folder::open(opened.path()).unwrap(), None).unwrap();
    let tokenizer = Tokenizer::open(opened.path()).unwrap();
    let [texts, vectors, most] = golden;
    assert_eq!(json!(pooling.most_tokens(&model)), *most, "{what}");
    let vectors = vectors.as_array().unwrap();
    for (text, expected) in texts.as_array().unwrap().iter().zip(vectors) {
        let text = text.as_str().unwrap();
        let encoded = pooling.encode(&tokenizer, text).unwrap();
        let encoded = encoded.truncated(pooling.most_tokens(&model), tokenizer.truncation_side());
        let input = Input {
            ids: &encoded.ids,
            ..Default::default()
        };
        let states = model.states(&[input], None).unwrap();
        let vector = pooling.vector(&model, &encoded.ids, &states[0]);
        let expected = expected.as_array().unwrap().iter();
        let expected: Vec<f32> = expected.map(|x| x.as_f64().unwrap() as f32).collect();
        close(&format!("{what}: {text}"), &vector, &expected, 1e-4);
        // That of no tokens, or of fewer than a prompt has, is of the same size.
        for count in [0, 1] {
            let states = vec![0.0; count * model.size()];
            let short = pooling.vector(&model, &[2][..count], &states);
            assert_eq!(short.len(), vector.len());
        }
    }
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    let golden = fs::read(folder("../sentence/vectors.json")).unwrap();
    let all: Value = serde_json::from_slice(&golden).unwrap();
    for (name, golden) in all["cases"].as_object().unwrap() {
        let opened = case(name);
        let pooling = Pooling::open(opened.path()).unwrap();
        let golden = [&all["texts"], &golden["vectors"], &golden["most"]];
        expect_vectors(name, &opened, &pooling, golden);
    }
}

/// Texts in lower case or behind a prompt, which may be left out of the vector.
#[test]
fn texts_are_read_as_the_folder_says() {
    let golden = fs::read(folder("../sentence/reading.json")).unwrap();
    let all: Value = serde_json::from_slice(&golden).unwrap();
    for (name, golden) in all["cases"].as_object().unwrap() {
        let opened = case(name);
        for (prompt, vectors) in golden["vectors"].as_object().unwrap() {
            let mut pooling = Pooling::open(opened.path()).unwrap();
            if !prompt.is_empty() {
                pooling = pooling.with_prompt(prompt).unwrap().unwrap();
            }
            assert_eq!(Some(pooling.similarity()), golden["similarity"].as_str());
            let golden = [&all["texts"], vectors, &golden["most"]];
            expect_vectors(&format!("{name}, {prompt}"), &opened, &pooling, golden);
        }
    }
}

/// The first numbers alone, after all else: Matryoshka's vectors.
#[test]
fn vectors_are_as_short_as_the_folder_says() {
    let vector = |settings: Value| {
        let opened = case("prompted");
        let path = opened.path().join("config_sentence_transformers.json");
        fs::write(path, settings.to_string()).unwrap();
        let model = TextEncoder::open(&Folder::open(opened.path()).unwrap(), None).unwrap();
        let states: Vec<f32> = (0..2 * model.size()).map(|i| i as f32).collect();
        Pooling::open(opened.path())
            .unwrap()
            .vector(&model, &[2, 3], &states)
    };
    let whole = vector(json!({}));
    assert_eq!(vector(json!({"truncate_dim": 3})), whole[..3]);
    assert_eq!(vector(json!({"truncate_dim": 1000})), whole);
}

#[test]
fn prompts_are_found_by_name() {
    const SETTINGS: &str = "config_sentence_transformers.json";
    let named = |model: &TempDir, name: &str| {
        let pooling = Pooling::open(model.path()).unwrap();
        pooling.with_prompt(name).unwrap().is_some()
    };
    let model = case("prompted");
    let pooling = Pooling::open(model.path()).unwrap();
    let names: Vec<&str> = pooling.prompts().collect();
    assert_eq!(names, ["document", "passage", "query"]);
    assert!(named(&model, "passage") && !named(&model, "nothing"));
    // Without prompts there are not even those of queries and documents.
    fs::remove_file(model.path().join(SETTINGS)).unwrap();
    assert!(!named(&model, "query"));
    let settings = json!({"prompts": {"query": "q: "}, "default_prompt_name": "document"});
    fs::write(model.path().join(SETTINGS), settings.to_string()).unwrap();
    assert!(named(&model, "query") && named(&model, "document"));

    let found = refused("prompted", SETTINGS, |settings| {
        settings["default_prompt_name"] = "nothing".into();
    });
    let expected = "default_prompt_name: found \"nothing\"; expected one of the prompts (document, passage, query)";
    assert!(found.contains(expected), "{found}");
    let found = refused("prompted", SETTINGS, |settings| {
        settings["prompts"]["query"] = json!(5);
    });
    assert!(
        found.contains("prompts.query: found 5; expected a text"),
        "{found}"
    );
    let found = refused("lower", "sentence_bert_config.json", |settings| {
        settings["do_lower_case"] = json!("yes");
    });
    assert!(found.contains("do_lower_case: found \"yes\""), "{found}");

    // The dot product of vectors of length 1 is the cosine.
    let model = case("lower");
    let settings = json!({"similarity_fn_name": "dot"});
    fs::write(model.path().join(SETTINGS), settings.to_string()).unwrap();
    let pooling = Pooling::open(model.path()).unwrap();
    assert_eq!(pooling.similarity(), "cosine");
}

#[test]
fn modules_that_are_not_known_are_refused_by_name() {
    const MODULES: &str = "modules.json";
    const DENSE: &str = "2_Dense/config.json";
    for (kind, path, said) in [
        ("sentence_transformers.models.CNN", "2_CNN", "CNN"),
        (
            "sentence_transformers.models.WeightedLayerPooling",
            "2_Pooling",
            "WeightedLayerPooling",
        ),
        ("custom.Normalize", "2_Normalize", "custom.Normalize"),
        (
            "sentence_transformers.models.Dense",
            "../2_Dense",
            "../2_Dense",
        ),
    ] {
        let found = refused("labse", MODULES, |modules| {
            modules[2] = json!({"path": path, "type": kind});
        });
        let place = format!("{MODULES}: module 2: found ");
        assert!(found.contains(&place) && found.contains(said), "{found}");
    }
    let found = refused("labse", MODULES, |modules| modules[0]["path"] = "x".into());
    assert!(found.contains("the model's own folder"), "{found}");
    let found = refused("labse", MODULES, |modules| {
        modules[1]["path"] = "nowhere".into();
    });
    assert!(
        found.contains("nowhere/config.json: cannot read"),
        "{found}"
    );

    for mode in [json!("sum"), json!(["mean", "sum"]), json!([])] {
        let found = refused("cls", "1_Pooling/config.json", |pooling| {
            pooling["pooling_mode"] = mode.clone();
        });
        assert!(
            found.contains(&format!(
                "pooling_mode: found {mode}; expected one of cls, max"
            )),
            "{found}"
        );
    }
    for (key, value, said) in [
        (
            "activation_function",
            json!("torch.nn.modules.activation.Softplus"),
            "Identity, Tanh",
        ),
        ("activation_function", json!("mine.Tanh"), "of torch.nn"),
        ("in_features", json!(17), "18, the size of the vectors"),
        ("out_features", json!(8), "linear.weight"),
        ("bias", json!(false), "linear.bias"),
        ("use_residual", json!(true), "residual"),
        (
            "module_input_name",
            json!("token_embeddings"),
            "sentence_embedding",
        ),
    ] {
        let found = refused("labse", DENSE, |dense| dense[key] = value);
        assert!(found.contains("2_Dense") && found.contains(said), "{found}");
    }
    let found = refused("labse", "sentence_bert_config.json", |settings| {
        settings["max_seq_length"] = json!("long");
    });
    assert!(found.contains("max_seq_length: found \"long\""), "{found}");
}

/// Where there is no list of modules: the mean, or what the pooling says, of length 1.
#[test]
fn without_modules_vectors_have_length_1() {
    let model = case("cls");
    fs::remove_file(model.path().join("modules.json")).unwrap();
    let encoder = TextEncoder::open(&Folder::open(model.path()).unwrap(), None).unwrap();
    let states: Vec<f32> = (0..36u8).map(f32::from).collect();
    let of = || {
        Pooling::open(model.path())
            .unwrap()
            .vector(&encoder, &[2, 3], &states)
    };
    let unit = |row: Vec<f32>| -> Vec<f32> {
        let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        row.iter().map(|x| x / length).collect()
    };
    close("first", &of(), &unit(states[..18].to_vec()), 1e-6);
    fs::remove_dir_all(model.path().join("1_Pooling")).unwrap();
    let mean = (0..18u8).map(|x| f32::from(x) + 9.0).collect();
    close("mean", &of(), &unit(mean), 1e-6);
}
