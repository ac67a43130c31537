//! Texts of traces and of models that try to leave their place.

use regard_serve::{
    Ablation, Config, Generation, Hypothesis, Input, InputKind, Model, Proposed, QueryKeys,
    QueryPlace, Seen,
};

use crate::chromium::Page;
use crate::common::{Server, hostile};
use crate::server;

#[test]
fn hostile_texts_stay_texts() {
    let server = server();
    let Some(mut page) = Page::open() else { return };
    for hash in [
        "",
        "&table=1",
        "&view=head",
        "&view=head&mode=lines&table=1",
        "&view=text&chosen=0,1",
        "&view=compare&table=1",
        "&view=rollout",
        "&view=ask&text=%22%3E%3Cimg+src%3Dx+onerror%3Dwindow.hit%3D1%3E+%3Cscript%3Ewindow.hit%3D1%3C%2Fscript%3E",
    ] {
        page.load(&format!("{}#trace=3{hash}", server.running.url));
        if hash.contains("ask") {
            page.wait("document.querySelector('#plain')");
        }
        assert_eq!(page.value("window.hit === undefined && document.querySelectorAll('main img, main script, main b[onclick]').length === 0"), true, "{hash}");
        assert!(
            page.value("document.documentElement.scrollWidth <= innerWidth") == true,
            "{hash}: the page is too wide"
        );
        assert_eq!(page.errors, Vec::<String>::new(), "{hash}");
    }
}

/// Answers with texts that try to leave their place.
struct Hostile;

const HOSTILE: &str = "\"><img src=x onerror=\"window.hit=1\"><script>window.hit=1</script>";

impl Model for Hostile {
    fn name(&self) -> &str {
        HOSTILE
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn look(&mut self, _: &Input, _: &Ablation) -> Result<Seen, String> {
        let proposed = |parent, taken| Proposed {
            parent,
            text: HOSTILE.to_owned(),
            probability: 0.5,
            taken,
        };
        let trace = hostile();
        let hypothesis = |leaf| Hypothesis {
            leaf,
            trace: trace.clone(),
        };
        Ok(Seen {
            generation: Some(Generation {
                proposals: vec![
                    proposed(None, true),
                    proposed(None, false),
                    proposed(Some(0), true),
                ],
                hypotheses: vec![hypothesis(2), hypothesis(0)],
            }),
            ..Seen::new(trace.clone(), HOSTILE)
        })
    }

    fn shows_queries(&self) -> bool {
        true
    }

    fn query(&mut self, _: &Input, _: &Ablation, _: &QueryPlace) -> Result<QueryKeys, String> {
        Ok(QueryKeys {
            query: vec![1.0, f32::NAN],
            scale: 0.5,
            softcap: Some(30.0),
            positions: (0..10).collect(),
            keys: vec![f32::INFINITY; 20],
            values: vec![1.0; 20],
            scores: vec![Some(f64::NAN); 10],
            weights: vec![0.1; 10],
        })
    }
}

#[test]
fn hostile_answers_stay_texts() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Hostile)));
    let Some(mut page) = Page::open() else { return };
    server.look(r#"{"text":"a"}"#);
    for hash in [
        "&view=generation",
        "&view=generation&order=all&node=0",
        "&view=query&key=3",
        "&view=ask&text=a&off=hide%3A1%3A0+0+0+%3Ci%3Eself%3C%2Fi%3E",
    ] {
        page.load(&format!("{}#trace=0{hash}", server.running.url));
        if hash.contains("ask") {
            page.wait("document.querySelector('#hidden')");
        }
        assert_eq!(page.value("window.hit === undefined && document.querySelectorAll('main img, main script, main b[onclick]').length === 0"), true, "{hash}");
        assert_eq!(page.text(".alert"), "", "{hash}");
        assert!(
            page.value("document.documentElement.scrollWidth <= innerWidth") == true,
            "{hash}: the page is too wide"
        );
        assert_eq!(page.errors, Vec::<String>::new(), "{hash}");
    }
}
