//! `regard evaluate`. Numbers are those of sacrebleu 2.6.0 on the same files.

use std::{fs, io::Write, path::Path};

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::{file, inside, refused, refused_command, regard, run, stderr, stdout, trained};

const REFERENCES: &str = "\
Ein Mann in einem roten Hemd fährt Fahrrad.
Zwei Hunde spielen im Schnee.
Eine Frau liest ein Buch auf einer Bank im Park.
Kinder laufen über die Straße.
Ein Junge springt in das Wasser.
Drei Männer sitzen an einem Tisch und essen.
Ein Mädchen mit einem blauen Hut lächelt.
Die Band spielt auf der Bühne vor vielen Leuten.
Ein Auto steht vor einem alten Haus.
Der Koch bereitet in der Küche das Essen vor.
";

const ONE: &str = "\
Ein Mann in einem roten Hemd fährt Rad.
Zwei Hunde spielen im Schnee
Eine Frau liest ein Buch im Park.
Kinder rennen über die Straße.
Ein Junge springt ins Wasser.
Drei Männer sitzen an einem Tisch.
Ein Mädchen mit blauem Hut lächelt.
Eine Band spielt auf der Bühne.
Ein Auto steht vor dem alten Haus.
Der Koch kocht in der Küche.
";

const TWO: &str = "\
ein Mann in einem roten Hemd fährt Fahrrad.
Zwei Hunde spielen in dem Schnee.
Eine Frau liest ein Buch auf einer Bank im Park.
Kinder laufen über eine Straße.
Ein Junge springt in das Wasser.
Drei Männer sitzen an einem Tisch und essen etwas.
Ein Mädchen mit einem blauen Hut lächelt.
Die Band spielt auf der Bühne vor Leuten.
Ein Auto vor einem alten Haus.
Der Koch bereitet in der Küche Essen vor.
";

struct Files {
    folder: TempDir,
    references: String,
    one: String,
    two: String,
}

fn files() -> Files {
    let folder = tempdir().unwrap();
    Files {
        references: file(folder.path(), "ref.de", REFERENCES),
        one: file(folder.path(), "one.de", ONE),
        two: file(folder.path(), "two.de", TWO),
        folder,
    }
}

/// The output of `regard evaluate`, with sacrebleu's version in place of ours.
fn evaluated(arguments: &[&str]) -> String {
    let assert = regard().arg("evaluate").args(arguments).assert().success();
    let ours = format!("2.6.0+regard.{}", env!("CARGO_PKG_VERSION"));
    stdout(&assert).replace(&ours, "2.6.0")
}

#[test]
fn scores_are_those_of_sacrebleu() {
    let files = files();
    let score = |arguments: &[&str]| {
        evaluated(&[&["-r", &files.references, "-i", &files.one], arguments].concat())
    };
    let details = "90.0/71.7/56.0/37.5 (BP = 0.819 ratio = 0.833 hyp_len = 70 ref_len = 84)";
    let bleu = "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 = 49.7";
    assert_eq!(score(&[]), format!("{bleu} {details}\n"));
    assert_eq!(score(&["-b"]), "49.7\n");
    assert_eq!(score(&["-b", "-w", "4", "--lowercase"]), "49.6691\n");
    assert_eq!(score(&["-b", "-w", "2", "-m", "chrf++"]), "70.38\n");
    assert_eq!(score(&["-b", "-m", "bleu", "chrf"]), "49.7\n70.8\n");
    assert_eq!(
        score(&["-b", "--confidence", "-w", "3"]),
        "49.669 (μ = 49.714 ± 11.292)\n"
    );
    assert!(score(&["--tokenizer", "char"]).contains(
        "tok:char|smooth:exp|version:2.6.0 = 70.8 96.3/90.8/86.8/82.9 (BP = 0.795 ratio = 0.813 hyp_len = 270 ref_len = 332)"
    ));
    assert!(score(&["--tokenizer", "intl"]).contains("tok:intl"));
    let json = r#"{
 "name": "BLEU",
 "score": 49.7,
 "signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
 "verbose_score": "90.0/71.7/56.0/37.5 (BP = 0.819 ratio = 0.833 hyp_len = 70 ref_len = 84)",
 "nrefs": "1",
 "case": "mixed",
 "eff": "no",
 "tok": "13a",
 "smooth": "exp",
 "version": "2.6.0"
}
"#;
    assert_eq!(score(&["--json"]), json);
    let several = score(&["--json", "-m", "bleu", "chrf"]);
    assert!(
        several.starts_with(&format!("[\n{},\n", json.trim_end())),
        "{several}"
    );
    assert!(several.ends_with("}\n]\n"), "{several}");
}

#[test]
fn files_may_be_compressed_or_standard_input_and_references_several() {
    let files = files();
    let gz = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let references = file(files.folder.path(), "ref.gz", gz(REFERENCES));
    let mut command = regard();
    command
        .args(["evaluate", "-b", "-r", &references, "-i", "-"])
        .write_stdin(gz(ONE));
    assert_eq!(stdout(&command.assert().success()), "49.7\n");
    // Against itself and another one, a system is perfect.
    let both = ["-r", &files.references, &files.one, "-i", &files.one];
    let score = evaluated(&both);
    assert!(
        score.starts_with("BLEU|nrefs:2|") && score.contains(" = 100.0 "),
        "{score}"
    );
}

#[test]
fn two_systems_are_compared_by_a_paired_bootstrap() {
    let files = files();
    let two = format!("new={}", files.two);
    let text = evaluated(&[
        "-w4",
        "-r",
        &files.references,
        "-i",
        &files.one,
        "--bootstrap",
        &two,
    ]);
    // sacrebleu --paired-bs: baseline 49.6691, system 78.7925, p = 0.0010.
    let expected = "BLEU|nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 \
                    one.de = 49.6691, new = 78.7925, difference +29.1234";
    assert!(text.contains(expected), "{text}");
    assert!(
        text.contains("p = 0.0010: significant; new is higher in 99.6 % of resamples"),
        "{text}"
    );
    let arguments = [
        "-r",
        &files.references,
        "-i",
        &files.one,
        &files.two,
        "--bootstrap",
        "--json",
    ];
    let json: Value = serde_json::from_str(&evaluated(&arguments)).unwrap();
    let p = json["bootstrap"][0]["result"]["p_value"].as_f64().unwrap();
    assert!((p - 0.001).abs() < 5e-5, "{p}");
    assert_eq!(json["systems"][1]["scores"][0]["score"], 78.8);
    let confidence = &json["bootstrap"][0]["result"]["system_confidence"];
    assert_eq!(
        format!("{:.4}", confidence["mean"].as_f64().unwrap()),
        "78.0620"
    );
}

#[test]
fn scores_by_length_are_a_table_and_a_picture() {
    let files = files();
    let (svg, svg_argument) = inside(files.folder.path(), "length.svg");
    let (png, png_argument) = inside(files.folder.path(), "length.png");
    let one = format!("without={}", files.one);
    let two = format!("with={}", files.two);
    let common = [
        "-r",
        &files.references,
        "-s",
        &files.references,
        "-i",
        &one,
        &two,
        "--by-length",
    ];
    let buckets = ["--buckets", "5,7", "--least-sentences", "1"];
    let pictures = ["--svg", &svg_argument, "--png", &png_argument];
    let text = evaluated(&[&common[..], &buckets, &pictures].concat());
    let table: Vec<Vec<&str>> = text
        .lines()
        .skip_while(|line| !line.starts_with("BLEU by source length"))
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        table[0],
        ["source", "words", "sentences", "without", "with"]
    );
    assert_eq!(table.last().unwrap(), &["all", "10", "49.7", "78.8"]);
    assert_eq!(table.len(), 5);
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.contains("without") && svg.contains("BLEU by source length"));
    assert!(fs::read(png).unwrap().starts_with(b"\x89PNG"));
    let several = [&common[..], &pictures, &["-m", "bleu", "chrf"]].concat();
    let mut command = regard();
    refused_command(command.arg("evaluate").args(several), 2, ["one metric"]);
    let (picture, argument) = inside(files.folder.path(), "perfect.svg");
    let references = &files.references;
    let perfect = ["-r", references, "-s", references, "-i", references];
    refused(
        ["evaluate", "-r", "x", "-i", "y", "-s", "z", "--svg=a.svg"],
        2,
        ["--by-length"],
    );
    evaluated(&[&perfect[..], &["--by-length", "--svg", &argument]].concat());
    let svg = fs::read_to_string(picture).unwrap();
    let is_marked = |tick: &str| svg.contains(&format!(">{tick}</text>"));
    assert!(is_marked("100") && !is_marked("120"), "{svg}");
}

#[test]
fn digits_are_counted_by_sacrebleus_name_too() {
    let files = files();
    let scored =
        |option: &str| evaluated(&["-i", &files.one, "-r", &files.references, "-b", option, "3"]);
    let three = scored("--digits");
    assert_eq!((scored("--width"), scored("-w")), (three.clone(), three));
}

#[test]
fn alignments_are_scored_against_gold() {
    let folder = tempdir().unwrap();
    let found = file(folder.path(), "found", "0-0 1-1 3-2\n");
    let gold = file(folder.path(), "gold", "0-0 1?1 2-1\n");
    let text = evaluated(&["--alignments", &found, "--gold", &gold]);
    assert_eq!(
        text,
        "AER 0.4000 (precision 0.6667, recall 0.5000, 3 links found, 2 sure)\n"
    );
    let found = file(folder.path(), "found1", "1-1 2-2 4-3\n");
    let gold = file(folder.path(), "gold1", "1-1 2?2 3-2\n");
    let arguments = ["--alignments", &found, "--gold", &gold, "--one-based"];
    assert_eq!(evaluated(&[&arguments[..], &["-b"]].concat()), "0.4000\n");
    let more = [&arguments[..], &["-b", "-w", "6"]].concat();
    assert_eq!(evaluated(&more), "0.400000\n");
    let more = evaluated(&[&arguments[..], &["-w", "6"]].concat());
    assert!(
        more.starts_with("AER 0.400000 (precision 0.666667"),
        "{more}"
    );
    let json: Value =
        serde_json::from_str(&evaluated(&[&arguments[..], &["--json"]].concat())).unwrap();
    assert_eq!(json["recall"], 0.5);
    let bad = file(folder.path(), "bad", "0-0 1:1\n");
    refused(
        ["evaluate", "--alignments", &bad, "--gold", &gold],
        1,
        [&bad, "line 1", "link 2", "1:1"],
    );
    let short = file(folder.path(), "short", "0-0\n0-0\n");
    refused(
        ["evaluate", "--alignments", &short, "--gold", &gold],
        1,
        ["2", "1"],
    );
}

#[test]
fn a_model_translates_first() {
    let folder = tempdir().unwrap();
    let (output, output_argument) = inside(folder.path(), "out.txt");
    let text = evaluated(&[
        "--model",
        trained(),
        "--split",
        "test",
        "--output",
        &output_argument,
    ]);
    assert!(text.contains("BLEU|nrefs:1|case:mixed"), "{text}");
    assert!(
        text.contains(" of 40 lines)") && text.contains("(teacher-forced, "),
        "{text}"
    );
    let whole = fs::read(&output).unwrap();
    assert_eq!(String::from_utf8_lossy(&whole).lines().count(), 40);
    // Of lines that are there already, the last one cut inside a character, nobody knows the attention.
    let third = whole.split_inclusive(|&byte| byte == b'\n').take(3);
    let done = [third.collect::<Vec<_>>().concat(), vec![0xc3]].concat();
    fs::write(&output, done).unwrap();
    let resumed = ["--resume", "--output", &output_argument];
    let evaluate = ["evaluate", "--model", trained(), "--split", "test"];
    let assert = regard().args(evaluate).args(resumed).assert().success();
    assert!(stderr(&assert).contains("3 lines were translated before (--resume)"));
    let told = stdout(&assert);
    assert!(told.contains("BLEU|") && !told.contains("AER"), "{told}");
    assert!(fs::read(&output).unwrap() == whole);
    // The task is learned, and the attention shows it.
    let arguments = ["--model", trained(), "--split", "test", "--json"];
    let json: Value = serde_json::from_str(&evaluated(&arguments)).unwrap();
    let system = &json["systems"][0];
    assert!(system["exact"].as_u64().unwrap() >= 36, "{json}");
    assert!(
        system["perplexity"]["value"].as_f64().unwrap() < 1.5,
        "{json}"
    );
    assert!(
        system["alignment"]["error_rate"].as_f64().unwrap() < 0.1,
        "{json}"
    );
}

/// What cannot be read or written is told before anything is translated.
#[test]
fn a_misspelt_file_costs_no_translation() {
    let folder = tempdir().unwrap();
    let (output, argument) = inside(folder.path(), "out.txt");
    let (_, nowhere) = inside(folder.path(), "none/look.svg");
    let evaluate = ["evaluate", "--model", trained(), "--split", "test"];
    for more in [
        ["--by-length", "--svg", &nowhere],
        ["--by-length", "--html", &nowhere],
        ["--confidence", "--bootstrap", &nowhere],
    ] {
        let mut command = regard();
        command.args(evaluate).args(["--output", &argument]);
        refused_command(command.args(more), 1, [&nowhere, "cannot"]);
        assert!(!output.exists(), "{more:?}");
    }
}

#[test]
fn models_and_files_stand_side_by_side() {
    let folder = tempdir().unwrap();
    let source = file(folder.path(), "source", "a b c d\nf e d c b\nb a c d\n");
    let references = file(folder.path(), "references", "d c b a\nb c d e f\nd c a b\n");
    let gold = file(
        folder.path(),
        "gold",
        "3-0 2-1 1-2 0-3\n4-0 3-1 2-2 1-3 0-4\n3-0 2-1 1-2 0-3\n",
    );
    let other = format!("file={references}");
    let model = format!("reverse={}", trained());
    let common = [
        "-s",
        &source,
        "-r",
        &references,
        "--model",
        &model,
        "-i",
        &other,
    ];
    let text = evaluated(
        &[
            &common[..],
            &["--gold", &gold, "--bootstrap", "--resamples", "50"],
        ]
        .concat(),
    );
    assert!(
        text.contains("file: BLEU|") && text.contains("reverse: BLEU|"),
        "{text}"
    );
    assert!(
        text.contains("reverse: exact ") && !text.contains("file: exact"),
        "{text}"
    );
    assert!(
        text.contains("reverse: AER ") && text.contains("by the attention of its translations"),
        "{text}"
    );
    assert!(text.contains("file = 100.0, reverse = "), "{text}");
    refused(
        ["evaluate", "--model", trained(), "-r", &references],
        2,
        ["--source"],
    );
    let both = [
        "evaluate",
        "--model",
        trained(),
        "-s",
        &source,
        "-r",
        &references,
        "-o",
        "x",
        "y",
    ];
    refused(both, 2, ["--output", "one for each"]);
}

#[test]
fn a_recipe_may_lack_the_part() {
    let folder = tempdir().unwrap();
    for name in ["model.safetensors", "recipe.toml"] {
        fs::copy(Path::new(trained()).join(name), folder.path().join(name)).unwrap();
    }
    let recipe = folder.path().join("recipe.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    let start = text.find("[data.synthetic]").unwrap();
    let end = text[start + 1..]
        .find("\n[")
        .map_or(text.len(), |at| start + 1 + at);
    let without = format!("{}{}", &text[..start], &text[end..]);
    let files = "[data]\ntrain_source = \"a\"\ntrain_target = \"b\"\nvalid_source = \"c\"\nvalid_target = \"d\"";
    fs::write(&recipe, without.replace("[data]", files)).unwrap();
    let model = crate::text(folder.path());
    refused(
        ["evaluate", "--model", &model, "--split", "test"],
        1,
        ["recipe.toml", "no test data", "--source"],
    );
    fs::remove_file(&recipe).unwrap();
    refused(
        ["evaluate", "--model", &model, "--split", "test"],
        1,
        [&*model, "no recipe.toml is beside this model", "--source"],
    );
}

#[test]
fn words_that_differ_from_the_gold_standards_are_told() {
    let folder = tempdir().unwrap();
    let source = file(folder.path(), "source", "a b\n");
    let references = file(folder.path(), "references", "b a\n");
    let gold = file(folder.path(), "gold", "0-1 1-0\n");
    let assert = run([
        "evaluate",
        "--model",
        trained(),
        "-s",
        &source,
        "-r",
        &references,
        "--gold",
        &gold,
    ]);
    assert!(!stderr(&assert.success()).contains("warning"));
    let short = file(folder.path(), "short", "0-1 1-0\n\n");
    let arguments = [
        "evaluate",
        "--model",
        trained(),
        "-s",
        &source,
        "-r",
        &references,
        "--gold",
        &short,
    ];
    refused(arguments, 1, [&references, &short, "1", "2"]);
}

#[test]
fn options_without_effect_are_refused() {
    let files = files();
    let alignment = file(files.folder.path(), "alignment", "0-0\n");
    let texts = ["-r", &files.references, "-i", &files.one];
    let aligned = ["--alignments", &alignment, "--gold", &alignment];
    for (given, more, said) in [
        (&texts, ["--beam", "3"].as_slice(), "--beam is for models"),
        (&texts, &["--seed", "3"], "--seed says how --confidence"),
        (
            &texts,
            &["--resamples", "10"],
            "--resamples says how --confidence",
        ),
        (
            &texts,
            &["-m", "chrf", "--tokenizer", "char"],
            "--tokenizer is an option of BLEU",
        ),
        (
            &texts,
            &["-m", "chrf", "--smoothing", "none"],
            "--smoothing is an option of BLEU",
        ),
        (
            &texts,
            &["--least-sentences", "2"],
            "--least-sentences, --svg, --png and --html show scores by length",
        ),
        (
            &texts,
            &["--weights", "f16"],
            "--weights is for language models",
        ),
        (
            &aligned,
            &["-m", "chrf"],
            "--metric is for scores of translations",
        ),
        (
            &aligned,
            &["-r", &files.references],
            "--references is for scores of translations",
        ),
        (&aligned, &["-o", "x"], "--output holds what models write"),
        (&aligned, &["--beam", "3"], "--beam is for models"),
    ] {
        let mut command = regard();
        command.arg("evaluate").args(given).args(more);
        refused_command(&mut command, 2, [said]);
    }
    // Where they have an effect they are taken.
    let taken = ["--confidence", "--seed", "3", "--resamples", "10", "-b"];
    evaluated(&[&texts[..], &taken].concat());
    evaluated(&[&texts[..], &["-m", "chrf", "bleu", "--tokenizer", "char"]].concat());
}
