//! Traces of models that look at scenes: the images are drawn, the weights made up, with the look of trained attention.
#![allow(dead_code)]

use regard_images::scenes::{Scene, SceneConfig};
use regard_trace::{
    AttentionMap, Axis, Bounds, Image, Kind, Mask, Region, Regions, Token, Tokens, Trace,
};

/// A scene of three objects, with sides of `height` and `width` pixels.
pub fn scene(height: usize, width: usize) -> Scene {
    let config = SceneConfig {
        height,
        width,
        min_objects: 3,
        ..SceneConfig::default()
    };
    Scene::generate(3, 5, &config).expect("possible sizes")
}

pub fn image(scene: &Scene) -> Image {
    let image = &scene.image;
    let pixels = image.pixels().to_vec();
    Image::new(image.height(), image.width(), image.channels(), pixels).expect("it fills its shape")
}

pub fn grid(rows: usize, columns: usize) -> Axis {
    Axis::Image {
        prefix: Tokens::default(),
        rows,
        columns,
    }
}

fn normalized(mut row: Vec<f32>) -> Vec<f32> {
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|w| *w /= sum);
    row
}

/// Weights over a grid around the centre of an object (everywhere for none), `sharp` times narrower than the object is.
pub fn around(
    scene: &Scene,
    object: Option<usize>,
    rows: usize,
    columns: usize,
    sharp: f64,
) -> Vec<f32> {
    let (height, width) = (scene.image.height() as f64, scene.image.width() as f64);
    let cells = (0..rows * columns).map(|cell| {
        let y = ((cell / columns) as f64 + 0.5) / rows as f64 * height;
        let x = ((cell % columns) as f64 + 0.5) / columns as f64 * width;
        let noise = ((cell * 31 + object.map_or(7, |o| o * 13)) % 23) as f64 / 23.0;
        let near = object.map_or(0.25, |object| {
            let object = &scene.objects[object];
            let distance =
                ((x - object.x).powi(2) + (y - object.y).powi(2)).sqrt() * sharp / object.radius;
            (-0.5 * distance * distance).exp()
        });
        (near + 0.03 * noise) as f32
    });
    normalized(cells.collect())
}

/// A captioner with soft attention: a map for each word and for the end of the sentence.
pub fn caption(height: usize, width: usize, rows: usize, columns: usize) -> Trace {
    let scene = scene(height, width);
    let mut weights = vec![];
    let mut words = vec![];
    for (word, object) in scene.caption.words() {
        words.push(Token::new(word));
        weights.extend(around(&scene, object, rows, columns, 1.2));
    }
    words.push(Token::special("</s>"));
    weights.extend(around(&scene, None, rows, columns, 1.0));
    let map = AttentionMap::new(
        Kind::Cross,
        Tokens::from(words),
        grid(rows, columns),
        1,
        weights,
    );
    Trace::new("captioner", "scene.png", &scene.caption.text)
        .with_image(image(&scene))
        .with_map(map.expect("normalised"))
}

/// The same with hard attention: one drawn cell for each word.
pub fn hard_caption(side: usize, cells: usize) -> Trace {
    let soft = caption(side, side, cells, cells);
    let map = &soft.maps[0];
    let weights = map.weights().chunks(cells * cells).flat_map(|row| {
        let most = row.iter().copied().fold(0.0, f32::max);
        let drawn = row.iter().position(|&w| w == most);
        (0..row.len()).map(move |cell| f32::from(u8::from(Some(cell) == drawn)))
    });
    let map = AttentionMap::new(
        Kind::Cross,
        map.queries().clone(),
        map.keys().clone(),
        1,
        weights.collect(),
    );
    Trace {
        maps: vec![map.expect("normalised")],
        ..soft
    }
}

/// A vision Transformer with class token, `cells x cells` patches.
pub fn vit(side: usize, cells: usize, layers: usize, heads: usize) -> Trace {
    let scene = scene(side, side);
    let axis = Axis::Image {
        prefix: Tokens::from(vec![Token::special("[CLS]")]),
        rows: cells,
        columns: cells,
    };
    let mut trace = Trace::new("vit", "scene.png", "square").with_image(image(&scene));
    for layer in 0..layers {
        let mut weights = vec![];
        for head in 0..heads {
            let object = (head < 3).then_some(head);
            let seen = around(&scene, object, cells, cells, 0.6 + 0.3 * layer as f64);
            for query in 0..=cells * cells {
                let on_class = 0.1 + 0.05 * head as f32;
                let near = |cell: usize| {
                    let from = query.saturating_sub(1);
                    let dy = (from / cells) as f32 - (cell / cells) as f32;
                    let dx = (from % cells) as f32 - (cell % cells) as f32;
                    (-(dx * dx + dy * dy) / (1.0 + head as f32)).exp()
                };
                let local = if query == 0 { 0.0 } else { 0.6 };
                let row = (0..cells * cells)
                    .map(|cell| seen[cell] * (1.0 - local) + local * near(cell) * 0.2);
                weights.extend(normalized([on_class].into_iter().chain(row).collect()));
            }
        }
        let map = AttentionMap::new(
            Kind::SelfAttention,
            axis.clone(),
            axis.clone(),
            heads,
            weights,
        );
        trace = trace.with_map(map.expect("normalised").at_layer(layer));
    }
    trace
}

/// The objects of a scene, as a detector finds them.
pub fn detections(scene: &Scene) -> Vec<Region> {
    let found = scene.objects.iter().zip(&scene.masks).enumerate();
    found
        .map(|(index, (object, mask))| {
            let bounds = Bounds {
                x: object.bounds.x - 0.4,
                y: object.bounds.y + 0.3,
                width: object.bounds.width + 0.7,
                height: object.bounds.height,
            };
            let mask = Mask::new(mask.height(), mask.width(), mask.runs()).expect("full");
            let region = Region::new(object.description(), bounds).expect("finite");
            region
                .scored(0.99 - 0.13 * index as f32)
                .expect("finite")
                .masked(mask)
        })
        .collect()
}

/// A detector: an object query for each object, with its box, its mask and its map.
pub fn detector(side: usize, cells: usize) -> Trace {
    let scene = scene(side, side);
    let weights = (0..scene.objects.len()).flat_map(|o| around(&scene, Some(o), cells, cells, 1.6));
    let queries = Regions::from(detections(&scene));
    let map = AttentionMap::new(
        Kind::Cross,
        queries,
        grid(cells, cells),
        1,
        weights.collect(),
    );
    Trace::new("detr", "scene.png", "")
        .with_image(image(&scene))
        .with_map(map.expect("normalised"))
}

/// Bottom-up attention: a question, and a weight for each proposed box.
pub fn question(side: usize) -> Trace {
    let scene = scene(side, side);
    let mut regions: Vec<Region> = (scene.objects.iter())
        .map(|object| {
            let bounds = object.bounds;
            let bounds = Bounds {
                x: bounds.x,
                y: bounds.y,
                width: bounds.width,
                height: bounds.height,
            };
            Region::new(object.kind.name(), bounds).expect("finite")
        })
        .collect();
    let part = side as f32 / 8.0;
    for (x, y) in [(0.2, 0.3), (4.1, 0.5), (3.2, 5.0), (5.6, 3.1)] {
        let bounds = Bounds {
            x: x * part,
            y: y * part,
            width: 2.3 * part,
            height: 2.6 * part,
        };
        regions.push(Region::new("ground", bounds).expect("finite"));
    }
    let weights = vec![0.62, 0.12, 0.05, 0.02, 0.11, 0.03, 0.05];
    let query = Tokens::from(vec![Token::new(&scene.questions[0].phrase.text)]);
    let map = AttentionMap::new(Kind::Cross, query, Regions::from(regions), 1, weights);
    Trace::new(
        "vqa",
        &scene.questions[0].phrase.text,
        &scene.questions[0].answer,
    )
    .with_image(image(&scene))
    .with_map(map.expect("normalised"))
}

/// Residual attention: at each stage a factor for each of some channels and each position.
pub fn masks(side: usize) -> Trace {
    let scene = scene(side, side);
    let mut trace =
        Trace::new("residual-attention", "scene.png", "square").with_image(image(&scene));
    for (stage, cells) in [16usize, 8, 4].into_iter().enumerate() {
        let channels = 6;
        let weights = (0..channels).flat_map(|channel| {
            let seen = around(&scene, (channel < 3).then_some(channel), cells, cells, 1.0);
            let most = seen.iter().copied().fold(0.0, f32::max);
            seen.into_iter()
                .map(move |w| 0.3 + 0.65 * w / most)
                .collect::<Vec<_>>()
        });
        let image = Tokens::from(vec![Token::new("mask")]);
        let map = AttentionMap::unnormalized(
            Kind::Other,
            image,
            grid(cells, cells),
            channels,
            weights.collect(),
        );
        let map = map
            .expect("finite")
            .named(format!("stage {}", stage + 1))
            .at_layer(stage);
        trace = trace.with_map(map);
    }
    trace
}

/// Factors of channels for some classes.
pub fn gates(channels: usize) -> Vec<(String, Vec<f32>)> {
    let row = |class: usize| {
        let factors = (0..channels).map(|channel| {
            let own = ((channel * 7919 + 13) % 101) as f32 / 101.0;
            let of_class = (((channel + 3) * (class + 2) * 31) % 17) as f32 / 17.0 - 0.5;
            (0.15 + 0.7 * own + 0.15 * of_class).clamp(0.0, 1.0)
        });
        factors.collect()
    };
    ["cat", "dog", "ship"]
        .into_iter()
        .enumerate()
        .map(|(class, name)| (name.to_owned(), row(class)))
        .collect()
}
