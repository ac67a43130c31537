//! Scoring two files end to end, as a program that replaces sacrebleu does, and the errors for bad files.

use std::fs;
use std::path::PathBuf;

use regard_evaluate::{
    Aer, Alignment, Bleu, Bootstrap, Chrf, EvaluateError, Gold, Indexing, LengthBuckets,
    SegmentCounts, lines,
};

const SOURCES: &str = "Ein Hund rennt.\nZwei Männer spielen Schach im Park.\r\n\nEin Kind isst einen roten Apfel am Tisch.\n";
const REFERENCES: &str =
    "A dog runs.\nTwo men play chess in the park.\n\nA child eats a red apple at the table.\n";
const HYPOTHESES: &str = "A dog is running.\nTwo men play chess in a park.  \n\nA child is eating a red apple at the table.\n";

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

#[test]
fn two_files_are_scored() {
    let files = Files::new();
    let paths = [
        files.write("out.en", HYPOTHESES),
        files.write("ref.en", REFERENCES),
    ];
    let streams = lines::read_aligned(&paths).unwrap();
    let (hypotheses, references) = streams.split_first().unwrap();

    // The numbers that `sacrebleu ref.en -i out.en -m bleu chrf -w 4` printed (sacrebleu 2.6.0).
    let bleu = Bleu::default().corpus(hypotheses, references).unwrap();
    assert_eq!(bleu.report().number(4), "54.3295");
    assert_eq!(
        bleu.verbose(),
        "79.2/61.9/44.4/40.0 (BP = 1.000 ratio = 1.091 hyp_len = 24 ref_len = 22)"
    );
    let chrf = Chrf::default().corpus(hypotheses, references).unwrap();
    assert_eq!(chrf.report().number(4), "71.6946");
    let json: serde_json::Value = serde_json::from_str(&bleu.report().json(2)).unwrap();
    assert_eq!(json["score"].to_string(), "54.33");
    assert_eq!(json["tok"], "13a");

    let sources = lines::read(&files.write("src.de", SOURCES)).unwrap();
    let systems = [("out.en", hypotheses), ("ref.en", &references[0])];
    let table = LengthBuckets {
        edges: vec![5],
        minimum: 1,
    }
    .table(
        &Bleu::default(),
        &sources,
        &systems,
        references,
        Some(Bootstrap::default()),
    )
    .unwrap();
    let labels: Vec<String> = table.buckets.iter().map(|bucket| bucket.label()).collect();
    assert_eq!(labels, ["≤5", ">5"]);
    assert_eq!(table.overall.scores[0].score, bleu.score);

    let collect = |stream| SegmentCounts::collect(&Bleu::default(), stream, references).unwrap();
    let result = Bootstrap::default()
        .paired(
            &Bleu::default(),
            &collect(hypotheses),
            &collect(&references[0]),
        )
        .unwrap();
    assert!(result.difference() > 0.0 && result.p_value <= 1.0);
    assert!(
        serde_json::to_string(&result)
            .unwrap()
            .contains("\"p_value\"")
    );
}

#[test]
fn bad_files_are_named() {
    let files = Files::new();
    let good = files.write("good.en", REFERENCES);
    let short = files.write("short.en", "one line\n");
    let message = lines::read_aligned(&[&good, &short])
        .unwrap_err()
        .to_string();
    for part in ["good.en", "short.en", "4 and 1"] {
        assert!(message.contains(part), "{message}");
    }

    let latin = files.write("latin1.de", b"gut\n\nM\xe4nner\n");
    let message = lines::read_aligned(&[&good, &latin])
        .unwrap_err()
        .to_string();
    for part in ["latin1.de", "line 3", "byte offset 6"] {
        assert!(message.contains(part), "{message}");
    }

    let empty = files.write("empty.en", "");
    assert!(matches!(
        lines::read(&empty),
        Err(EvaluateError::Empty { .. })
    ));
    let missing = files.folder.path().join("missing.en");
    assert!(matches!(
        lines::read(&missing),
        Err(EvaluateError::Read { .. })
    ));
    assert!(matches!(
        lines::read(files.folder.path()),
        Err(EvaluateError::Read { .. })
    ));
}

#[test]
fn alignment_files_are_scored() {
    let files = Files::new();
    let gold = files.write("gold.wa", "1-1 2-2 3?3\n1-2 2-1\n");
    let text = fs::read_to_string(&gold).unwrap();
    let gold = Gold::parse("gold.wa", &text, Indexing::FromOne).unwrap();
    let weights = [0.9, 0.1, 0.0, 0.2, 0.7, 0.1, 0.1, 0.2, 0.7];
    let found = [
        Alignment::from_weights(&weights, 3, 3).unwrap(),
        Alignment::from_weights(&[0.3, 0.7, 0.6, 0.4], 2, 2).unwrap(),
    ];
    let aer = Aer::of(&found, &gold).unwrap();
    assert_eq!(
        (aer.error_rate(), aer.precision(), aer.recall()),
        (0.0, 1.0, 1.0)
    );
    assert_eq!(
        serde_json::to_string(&aer).unwrap(),
        r#"{"found":5,"sure":4,"found_sure":4,"found_possible":5}"#
    );
}
