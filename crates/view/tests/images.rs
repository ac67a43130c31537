//! Pictures of image traces: which panels there are, what they say, and what is refused by name.

#[path = "common/panels.rs"]
mod panels;
#[path = "common/scenes.rs"]
mod scenes;

use panels::{bounds, count, finite, grey, of, plain, single, terminal, titles, usual};
use regard_trace::diagnose::{rollout, stacks};
use regard_trace::{
    AttentionMap, Axis, Kind, Mask, Region, Regions, Token, Tokens, Trace, from_bytes, to_bytes,
};
use regard_view::choice::{Choice, Pick};
use regard_view::gates::{self, Gates, GatesError};
use regard_view::image::{ImageChoice, ImageError, ImageOptions, ImagePanel, ImagePicture};
use regard_view::terminal::Colour;

#[test]
fn a_caption_is_a_panel_for_each_word() {
    let trace = scenes::caption(64, 64, 8, 8);
    let words = trace.maps[0].queries().labels();
    let picture = usual(&trace);
    assert_eq!(titles(&picture)[0], "image");
    assert_eq!(titles(&picture)[1..], words);
    assert_eq!(picture.title(), "");
    let svg = picture.svg(&ImageOptions::default());
    // The pixels once, a panel each, and a layer over every panel but the first.
    assert_eq!(count(&svg, "use"), words.len() + 1);
    assert_eq!(count(&svg, "image"), 1 + words.len());
    assert!(
        svg.contains("<title>(4, 1): 0.22</title>"),
        "a cell to hover"
    );
    assert!(svg.contains(">0.22 at (4, 1)<"), "the strongest cell");
    assert!(svg.contains("url(#weights)"), "a colour bar");
    let none = ImageOptions {
        hover_cells: 0,
        ..ImageOptions::default()
    };
    assert!(!picture.svg(&none).contains("<title>(4, 1)"));
}

#[test]
fn a_trace_from_a_file_gives_the_same_picture() {
    let trace = scenes::detector(64, 8);
    let bytes = to_bytes(std::slice::from_ref(&trace)).expect("small");
    let read = from_bytes(&bytes).expect("own bytes");
    let svg = |trace: &Trace| usual(trace).svg(&ImageOptions::default());
    assert_eq!(svg(&read[0]), svg(&trace));
    let words = trace.merge_words();
    assert_eq!(svg(&words), svg(&trace));
}

#[test]
fn hard_attention_outlines_the_drawn_cell() {
    let picture = usual(&scenes::hard_caption(64, 8));
    assert_eq!(picture.panels()[2].note(), "drawn: (4, 1)");
    let svg = picture.svg(&ImageOptions::default());
    assert!(
        !svg.contains("url(#weights)"),
        "no scale, as there is no map"
    );
    assert_eq!(
        svg.matches(r#"fill-rule="evenodd""#).count(),
        picture.panels().len() - 1
    );
    assert_eq!(count(&svg, "image"), 1);
    // A grid of one cell is no choice, and neither is a gate of 1.
    let one = ImagePanel::new(grey(3, 3))
        .map(1, 1, &[1.0])
        .expect("valid");
    assert_eq!(one.note(), "1.00 at (0, 0)");
}

#[test]
fn a_vision_transformer_head_by_head_layer_by_layer_and_rolled_out() {
    let trace = scenes::vit(64, 8, 3, 4);
    let usual_panels = usual(&trace);
    assert_eq!(usual_panels.panels().len(), 2);
    assert_eq!(
        usual_panels.title(),
        "[CLS] · self · layer 3 of 3 · mean of 4 heads"
    );
    let with = |maps: Choice, query, rollout| {
        of(
            &trace,
            &ImageChoice {
                maps,
                query,
                rollout,
            },
        )
    };
    let heads = Choice {
        head: Pick::All,
        ..Choice::default()
    };
    let picture = with(heads, Pick::Usual, false);
    assert_eq!(
        titles(&picture),
        [
            "image",
            "head 1 of 4",
            "head 2 of 4",
            "head 3 of 4",
            "head 4 of 4"
        ]
    );
    assert!(
        picture.panels()[1].note().ends_with(" on [CLS]"),
        "{}",
        picture.panels()[1].note()
    );
    let layers = Choice {
        layer: Pick::All,
        ..Choice::default()
    };
    let picture = with(layers, Pick::One(20), false);
    assert_eq!(
        titles(&picture),
        ["image", "layer 1 of 3", "layer 2 of 3", "layer 3 of 3"]
    );
    assert_eq!(picture.title(), "query (2, 3) · self · mean of 4 heads");

    let picture = with(Choice::default(), Pick::Usual, true);
    assert_eq!(picture.title(), "[CLS] · rollout of 3 layers");
    let (_, maps) = stacks(&trace).remove(0);
    let rolled = rollout(&maps).expect("a stack");
    let strongest = rolled.row(0, 0)[1..].iter().copied().fold(0.0, f32::max);
    let note = picture.panels()[1].note();
    assert!(note.starts_with(&format!("{strongest:.2} at (")), "{note}");

    // Without a class token the mean over all queries stands for them.
    let axis = scenes::grid(2, 2);
    let map = AttentionMap::new(Kind::SelfAttention, axis.clone(), axis, 1, vec![0.25; 16]);
    let trace = Trace::new("m", "", "")
        .with_image(grey(4, 4))
        .with_map(map.expect("valid"));
    assert_eq!(usual(&trace).title(), "mean of 4 queries");

    // A token before the cells that is no class token is not read: here it would see itself alone.
    let axis = Axis::Image {
        prefix: Tokens::from(vec![Token::special("[REG]")]),
        rows: 1,
        columns: 2,
    };
    let rows = vec![1.0, 0.0, 0.0, 0.2, 0.8, 0.0, 0.4, 0.0, 0.6];
    let map = AttentionMap::new(Kind::SelfAttention, axis.clone(), axis, 1, rows);
    let trace = Trace::new("m", "", "")
        .with_image(grey(4, 4))
        .with_map(map.expect("valid"));
    let picture = usual(&trace);
    assert_eq!(picture.title(), "mean of 2 queries");
    assert_eq!(picture.panels()[1].note(), "0.40 at (0, 0), 0.30 on [REG]");
}

#[test]
fn objects_have_boxes_masks_and_maps() {
    let picture = usual(&scenes::detector(64, 8));
    assert_eq!(
        titles(&picture),
        ["image", "small yellow 4", "small blue circle", "white 4"]
    );
    assert!(
        picture.panels()[1]
            .note()
            .starts_with("score 0.99, 0.32 at (4, 1)")
    );
    let svg = picture.svg(&ImageOptions::default());
    // In the first panel with masks and labels, above maps the box alone.
    assert_eq!(svg.matches(r#"class="mask""#).count(), 3);
    assert_eq!(svg.matches(">white 4 0.73</text>").count(), 1);
    assert_eq!(svg.matches("<title>white 4 0.73</title>").count(), 2);
}

#[test]
fn a_question_weights_boxes() {
    let picture = usual(&scenes::question(64));
    assert_eq!(picture.title(), "Is there a yellow 4 right of the white 4?");
    assert_eq!(picture.panels()[1].note(), "0.62 on 4");
    let svg = picture.svg(&ImageOptions::default());
    assert!(svg.contains(">4 0.62</text>") && svg.contains("url(#weights)"));
    // Boxes outside the image, and without a size, are drawn at its edge.
    let far = [
        bounds(-50.0, 3.0, 10.0, 2.0),
        bounds(1e30, -1e30, 1e30, 0.0),
        bounds(2.0, 2.0, 0.0, 0.0),
    ];
    let regions: Vec<Region> = far.map(|b| Region::new("", b).expect("finite")).into();
    let panel = ImagePanel::new(grey(4, 6))
        .regions(&regions, 7)
        .expect("no masks");
    let svg = single(panel.clone()).svg(&ImageOptions::default());
    assert!(finite(&svg) && !svg.contains("width=\"-"), "{svg}");
    plain(&single(panel).text(&terminal(30, Colour::Palette256)), 30);
}

#[test]
fn masks_of_stages_are_means_over_channels_from_the_least() {
    let trace = scenes::masks(64);
    let choice = ImageChoice {
        maps: Choice {
            layer: Pick::All,
            ..Choice::default()
        },
        ..ImageChoice::default()
    };
    let picture = of(&trace, &choice);
    assert_eq!(titles(&picture), ["image", "stage 1", "stage 2", "stage 3"]);
    assert_eq!(picture.title(), "mask · mean of 6 channels");
    let svg = picture.svg(&ImageOptions::default());
    let means = trace.maps.iter().flat_map(|map| {
        let [channels, _, cells] = map.shape();
        let of_cell = move |cell| {
            let all = map.weights().iter().skip(cell).step_by(cells);
            all.sum::<f32>() / channels as f32
        };
        (0..cells).map(of_cell)
    });
    let least = means.fold(f32::INFINITY, f32::min);
    assert!(
        svg.contains(&format!(">{least:.3}</text>")),
        "the scale begins at the least, {least}: {svg}"
    );
    assert!(!svg.contains(">0.00</text>"), "and not at 0");
}

#[test]
fn what_cannot_be_drawn_is_an_error_by_name() {
    let panel = || ImagePanel::new(grey(4, 4)).titled("cat");
    let said = |result: Result<ImagePanel, ImageError>, words: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    said(
        panel().map(1, 2, &[f32::NAN, 0.1]),
        "map \"cat\": weight 0 is NaN",
    );
    said(panel().map(1, 2, &[0.1, f32::INFINITY]), "weight 1 is inf");
    said(panel().map(1, 2, &[0.1, -0.5]), "weight 1 is -0.5");
    said(panel().map(2, 2, &[0.1]), "1 weights for 2 x 2 cells");
    said(panel().map(0, 5, &[]), "0 weights for 0 x 5 cells");
    said(panel().map(usize::MAX, 2, &[0.1]), "1 weights for");
    said(
        panel().drawn(2, 0, 2, 2),
        "cell (2, 0) is outside its grid of 2 x 2",
    );
    said(panel().query(0, 3, 2, 2), "cell (0, 3)");
    let region = Region::new("dog", bounds(0.0, 0.0, 1.0, 1.0)).expect("valid");
    said(
        panel().weighted(std::slice::from_ref(&region), &[]),
        "0 weights for 1 regions",
    );
    said(
        panel().weighted(std::slice::from_ref(&region), &[f32::NAN]),
        "weight 0 is NaN",
    );
    let mask = Mask::new(2, 3, vec![6]).expect("full");
    said(
        panel().regions(&[region.masked(mask)], 0),
        "region \"dog\": its mask is of 2 x 3 pixels, the image of 4 x 4",
    );

    let trace = scenes::vit(64, 4, 2, 2);
    let refused = |trace: &Trace, choice: ImageChoice, words: &str| {
        let error = ImagePicture::of(trace, &choice).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let default = ImageChoice::default();
    let without = Trace {
        image: None,
        ..trace.clone()
    };
    refused(&without, default, "the trace of \"vit\" has no image");
    let query = ImageChoice {
        query: Pick::One(17),
        ..default
    };
    refused(
        &trace,
        query,
        "self has no query 17; its queries are 0 to 16",
    );
    let maps = Choice {
        layer: Pick::One(4),
        ..Choice::default()
    };
    refused(&trace, ImageChoice { maps, ..default }, "has no layer 5");
    let words = Tokens::from_words("a b");
    let text = AttentionMap::new(Kind::SelfAttention, words.clone(), words, 1, vec![0.5; 4]);
    let text = text.expect("valid").named("decoder.words");
    let only = Trace::new("m", "", "")
        .with_image(grey(2, 2))
        .with_map(text);
    refused(&only, default, "found the maps decoder.words");
    let crossed = ImageChoice {
        rollout: true,
        ..default
    };
    refused(&scenes::caption(32, 32, 4, 4), crossed, "no layers");
    let empty = AttentionMap::new(
        Kind::Cross,
        Tokens::from_words("a"),
        scenes::grid(0, 7),
        1,
        vec![],
    );
    let empty = Trace::new("m", "", "")
        .with_image(grey(2, 2))
        .with_map(empty.expect("valid"));
    refused(&empty, default, "0 weights for 0 x 7 cells");
    let many = ImagePicture::new("", vec![panel(); 401])
        .unwrap_err()
        .to_string();
    assert!(many.contains("401 panels"), "{many}");
    let all = ImageChoice {
        query: Pick::All,
        ..default
    };
    refused(
        &scenes::vit(32, 21, 1, 1),
        all,
        "choose a layer, a head or a query",
    );
}

/// Maps over text beside maps over the image are left out.
#[test]
fn maps_over_text_are_not_drawn_over_the_image() {
    let words = Tokens::from_words("a b");
    let text = AttentionMap::new(Kind::DecoderSelf, words.clone(), words, 1, vec![0.5; 4]);
    let trace = scenes::caption(32, 32, 4, 4).with_map(text.expect("valid"));
    let choice = ImageChoice {
        maps: Choice {
            kind: Pick::All,
            ..Choice::default()
        },
        ..ImageChoice::default()
    };
    assert_eq!(
        of(&trace, &choice).panels().len(),
        1 + trace.maps[0].queries().len()
    );
}

fn hostile() -> Trace {
    let strange = "</script><b>&\"'\u{1b}[31m\u{202e}";
    let image = grey(4, 4);
    let mask = Mask::new(4, 4, vec![5, 2, 9]).expect("full");
    let region = Region::new(strange, bounds(0.5, 0.5, 2.0, 2.0)).and_then(|r| r.scored(0.5));
    let region = region.expect("valid").masked(mask);
    let cells = Axis::Image {
        prefix: Tokens::from(vec![Token::special(strange)]),
        rows: 2,
        columns: 2,
    };
    let boxes = Axis::from(Regions::from(vec![region; 2]));
    let map = |queries: Axis, keys: Axis| {
        let weights = vec![0.25; queries.len() * keys.len()];
        AttentionMap::unnormalized(Kind::Cross, queries, keys, 1, weights)
            .expect("finite")
            .named(strange)
    };
    let words = Axis::from(Tokens::from(vec![Token::new(strange), Token::new("")]));
    Trace::new(strange, strange, strange)
        .with_image(image)
        .with_map(map(boxes.clone(), cells.clone()))
        .with_map(map(words, boxes).at_layer(1))
        .with_map(map(cells.clone(), cells).at_layer(2))
}

#[test]
fn hostile_names_stay_names() {
    let trace = hostile();
    let all = ImageChoice {
        maps: Choice {
            layer: Pick::All,
            ..Choice::default()
        },
        query: Pick::All,
        rollout: false,
    };
    let picture = of(&trace, &all).titled("</svg>\u{1b}");
    let svg = picture.svg(&ImageOptions::default());
    assert_eq!(count(&svg, "script"), 0);
    assert!(!svg.contains('\u{1b}') && !svg.contains('\u{202e}') && !svg.contains("<b>"));
    for colour in [Colour::TrueColour, Colour::Ascii] {
        assert!(!plain(&picture.text(&terminal(60, colour)), 60).contains('\u{202e}'));
    }
}

#[test]
fn gates_are_sorted_and_compared() {
    let rows = scenes::gates(512);
    let single = Gates::new("stage 1", rows[..1].to_vec()).expect("valid");
    let factors = &rows[0].1;
    assert!(
        single
            .order()
            .windows(2)
            .all(|pair| factors[pair[0]] >= factors[pair[1]])
    );
    let classes = Gates::new("stage 2", rows).expect("valid");
    let svg = gates::stacked(&[single.clone(), classes.clone()]);
    // 512 channels on 340 bars at most: two each.
    assert_eq!(svg.matches("<title>channels ").count(), 4 * 256);
    assert!(svg.contains("line: the mean of the rows") && svg.contains(">ship</text>"));
    assert_eq!(count(&single.svg(), "svg"), 1);
    let text = classes.text(&terminal(40, Colour::TrueColour));
    assert_eq!(plain(&text, 40).lines().count(), 5);

    let named = |name: &str, row: Vec<f32>| vec![(name.to_owned(), row)];
    let said = |rows: Vec<(String, Vec<f32>)>| Gates::new("block", rows).unwrap_err().to_string();
    assert!(said(vec![]).contains("gates \"block\": no channels"));
    assert!(said(named("cat", vec![])).contains("no channels"));
    assert!(said(named("cat", vec![0.5, f32::NAN])).contains("\"cat\": channel 1 is NaN"));
    let uneven = [named("cat", vec![0.5]), named("dog", vec![0.5; 2])].concat();
    assert!(said(uneven).contains("\"dog\": 2 channels, expected 1"));

    let channels = Axis::Positions { length: 3 };
    let image = Axis::Positions { length: 1 };
    let map = AttentionMap::unnormalized(Kind::Other, image, channels, 1, vec![0.1, 0.9, 0.4]);
    let of_map = Gates::of(&map.expect("finite").named("stage 3, block 1")).expect("channels");
    assert_eq!(of_map.order(), [1, 2, 0]);
    assert!(of_map.svg().contains("stage 3, block 1"));
    let error = Gates::of(&scenes::caption(32, 32, 2, 2).maps[0])
        .unwrap_err()
        .to_string();
    assert!(error.contains("its keys are no channels"), "{error}");
}

#[test]
fn gates_are_chosen_and_joined_by_class() {
    let map = |layer: usize, weights: [f32; 2]| {
        let (image, channels) = (Axis::Positions { length: 1 }, Axis::Positions { length: 2 });
        let map = AttentionMap::unnormalized(Kind::Other, image, channels, 1, weights.to_vec());
        map.expect("finite")
            .named(format!("block {}", layer + 1))
            .at_layer(layer)
    };
    let image = |first: f32| {
        let trace = Trace::new("resnet", "a.png", "cat").with_map(map(0, [first, 0.5]));
        trace.with_map(map(1, [0.25, first]))
    };
    let all = |first: f32| Gates::chosen(&image(first), &Choice::default()).expect("there are two");
    assert_eq!(all(0.1).len(), 2);
    let choose = |layer: usize, head: Pick<usize>| {
        let choice = Choice {
            layer: Pick::One(layer),
            head,
            ..Choice::default()
        };
        Gates::chosen(&image(0.1), &choice)
    };
    assert_eq!(choose(1, Pick::One(0)).expect("it is there"), all(0.1)[1..]);
    for wrong in [choose(2, Pick::Usual), choose(1, Pick::One(1))] {
        assert!(matches!(wrong, Err(GatesError::Choice(_))), "{wrong:?}");
    }

    let images = [("cat", all(0.5)), ("dog", all(0.75)), ("cat", all(1.0))];
    let joined = Gates::by_class(&images).expect("few rows");
    let joined = joined.expect("of the same places");
    let rows = |rows: [[f32; 2]; 2]| {
        let names = ["cat", "dog"].map(str::to_owned);
        names.into_iter().zip(rows.map(Vec::from)).collect()
    };
    let expected = [
        Gates::new("block 1", rows([[0.75, 0.5], [0.75, 0.5]])),
        Gates::new("block 2", rows([[0.25, 0.75], [0.25, 0.75]])),
    ];
    assert_eq!(joined, expected.map(|gates| gates.expect("valid")));
    let fewer = [("cat", all(0.5)), ("dog", all(0.5)[1..].to_vec())];
    assert_eq!(Gates::by_class(&fewer), Ok(None));
}
