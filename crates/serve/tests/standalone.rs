//! The page that is a file: what stands in it, whatever the texts of its traces are.

mod common;

use proptest::collection::vec;
use proptest::prelude::*;
use regard_serve::page;
use regard_trace::{
    AttentionMap, Axis, Bounds, Image, Kind, Mask, Region, Regions, Token, Tokens, Trace,
};
use serde_json::Value;

use common::{caption, translation};

fn named(traces: Vec<Trace>) -> Vec<(String, Trace)> {
    let name = |trace: Trace| (trace.source.clone(), trace);
    traces.into_iter().map(name).collect()
}

/// What the page's script is given.
fn given(html: &str) -> Value {
    let start = html.find(r#"id="recorded">"#).expect("the data") + 14;
    let end = start + html[start..].find("</script>").expect("its end");
    serde_json::from_str(&html[start..end]).expect("JSON")
}

#[test]
fn pages_hold_everything_and_load_nothing() {
    let html = page("<&>", named(vec![translation(1), translation(2)]));
    for needed in [
        r#"<html lang="en">"#,
        "<title>&lt;&amp;></title>",
        "default-src 'none'",
        "Fahr",
        "<noscript><svg",
    ] {
        assert!(html.contains(needed), "{needed} is missing");
    }
    let addresses = html.matches("://").count();
    assert_eq!(
        addresses,
        html.matches("http://www.w3.org/2000/svg").count(),
        "an address beside SVG's own"
    );
    assert!(!html.contains(" src=") && !html.contains("url(http") && !html.contains("@import"));
}

#[test]
fn pages_of_nothing_are_pages() {
    for traces in [vec![], vec![Trace::new("m", "s", "t")]] {
        assert!(page("nothing", named(traces)).ends_with("</html>\n"));
    }
}

#[test]
fn a_page_knows_where_things_are_in_the_image() {
    let grey = |side: usize| Image::new(4, side, 3, vec![127; 12 * side]).expect("full");
    let mask = Mask::new(4, 4, vec![5, 2, 9]).expect("full");
    let bounds = Bounds {
        x: 0.0,
        y: 1.0,
        width: 2.0,
        height: 2.0,
    };
    let region = Region::new("cat", bounds).expect("valid");
    let queries = Axis::from(Regions::from(vec![region.clone().masked(mask), region]));
    let keys = Axis::Image {
        prefix: Tokens::default(),
        rows: 2,
        columns: 2,
    };
    let map = AttentionMap::new(Kind::Cross, queries, keys, 1, vec![0.25; 8]).expect("valid");
    let trace = Trace::new("m", "", "").with_image(grey(4)).with_map(map);
    let html = page("boxes", named(vec![trace, caption()]));
    let entries = &given(&html)["entries"];
    let queries = &entries[0]["pieces"]["axes"][0]["queries"];
    assert_eq!(
        queries["boxes"][0],
        serde_json::json!([0.0, 0.25, 0.5, 0.5])
    );
    let area = |query: usize| queries["areas"][query].as_str().expect("a text");
    assert!(area(0).starts_with('M') && area(1).is_empty());
    assert_eq!(
        entries[0]["pieces"]["axes"][0]["keys"]["grid"],
        serde_json::json!([0, 2, 2])
    );
    let address = entries[1]["image"].as_str().expect("a text");
    assert!(address.starts_with("data:image/png;base64,"));
    // A large image is reduced.
    let large = Trace::new("m", "", "").with_image(grey(30_000));
    assert!(page("large", named(vec![large])).len() < 400_000);
}

fn any_trace() -> impl Strategy<Value = Trace> {
    let tokens = || {
        vec((any::<String>(), 0usize..5), 0..9).prop_map(|parts| {
            let token = |(text, word): (String, usize)| Token::new(text).in_word(word);
            parts.into_iter().map(token).collect::<Tokens>()
        })
    };
    (tokens(), tokens(), 1usize..3, any::<[String; 4]>())
        .prop_flat_map(|(queries, keys, heads, texts)| {
            let size = heads * queries.len() * keys.len();
            let weights = vec(0.0f32..f32::MAX, size);
            (Just((queries, keys, heads, texts)), weights)
        })
        .prop_map(
            |((queries, keys, heads, [name, model, source, target]), weights)| {
                let map = AttentionMap::unnormalized(Kind::Cross, queries, keys, heads, weights);
                Trace::new(model, source, target).with_map(map.expect("finite").named(name))
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_text_stays_inside_its_page(trace in any_trace(), title: String) {
        let plain = page("", named(vec![]));
        let html = page(&title, named(vec![trace]));
        for tag in ["<script", "</script", "<noscript", "</noscript"] {
            prop_assert_eq!(html.matches(tag).count(), plain.matches(tag).count());
        }
        prop_assert!(given(&html).is_object());
    }
}
