//! Answers to questions about images, judged by the answers of people.
//!
//! ```text
//! accuracy = mean over the people i of min(people but i who gave this answer / 3, 1)      (Antol et al. 2015, Goyal et al. 2017)
//! ```
//!
//! As in the official evaluation (github.com/GT-Vision-Lab/VQA, `vqaEval.py` of `c4e6a0e`) the answer is compared after
//! [`normalize_answer`], those of people without punctuation where they disagree, and as they are where all said the same: the data set
//! has them in lower case, with digits and without articles. Its list of contractions is taken whole, with its quirks: `somebody'd`
//! loses its apostrophe.

use std::{collections::HashMap, sync::LazyLock};

/// So many people who gave an answer make it right.
const AGREED: f64 = 3.0;

const PUNCTUATION: [char; 21] = [
    ';', '/', '[', ']', '"', '{', '}', '(', ')', '=', '+', '\\', '_', '-', '>', '<', '@', '`', ',',
    '?', '!',
];

const ARTICLES: [&str; 3] = ["a", "an", "the"];

const NUMBERS: [(&str, &str); 12] = [
    ("none", "0"),
    ("zero", "0"),
    ("one", "1"),
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
];

/// The accuracy of `answer` by the answers of `people`, 0 to 1; where there is only one, whether they are equal.
///
/// ```
/// use regard_evaluate::vqa_accuracy;
///
/// let people: Vec<String> = ["red"; 2].into_iter().chain(["pink"; 8]).map(str::to_owned).collect();
/// assert_eq!(vqa_accuracy("pink", &people), 1.0);
/// // Without one of the two, one is left of the three that are needed; without another, two.
/// assert!((vqa_accuracy("red", &people) - (2.0 * 1.0 / 3.0 + 8.0 * 2.0 / 3.0) / 10.0).abs() < 1e-12);
/// ```
pub fn vqa_accuracy(answer: &str, people: &[String]) -> f64 {
    let answer = normalize_answer(answer);
    let agree = people.windows(2).all(|pair| pair[0] == pair[1]);
    let given = people.iter().filter(|person| match agree {
        true => **person == answer,
        false => without_punctuation(person) == answer,
    });
    let (given, all) = (given.count(), people.len());
    if all < 2 {
        return given as f64;
    }
    let without = |left_out: usize| ((given - left_out) as f64 / AGREED).min(1.0);
    let mut sum = (all - given) as f64 * without(0);
    if given > 0 {
        sum += given as f64 * without(1);
    }
    sum / all as f64
}

/// What a model should say of an answer that `given` of `people` gave: `min(given / 3, 1)`, of fewer than three people their share.
pub fn vqa_target(given: usize, people: usize) -> f64 {
    (given as f64 / AGREED.min(people.max(1) as f64)).min(1.0)
}

/// An answer without what may differ between people who mean the same: in lower case, without punctuation and articles, numbers to ten as
/// digits, contractions with their apostrophe.
///
/// ```
/// use regard_evaluate::normalize_answer;
///
/// assert_eq!(normalize_answer("The Two dogs, (left)."), "2 dogs left");
/// ```
pub fn normalize_answer(answer: &str) -> String {
    let text = without_punctuation(answer.replace(['\n', '\t'], " ").trim());
    let words = text.split_whitespace().map(|word| {
        let word = word.to_lowercase();
        let number = NUMBERS.iter().find(|(name, _)| *name == word);
        number.map_or(word, |(_, digits)| (*digits).to_owned())
    });
    let words = words.filter(|word| !ARTICLES.contains(&word.as_str()));
    let words = words.map(|word| contraction(&word).to_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// Punctuation at the edge of a word goes, so does all of it in a text with a comma between digits; elsewhere a space takes its place.
fn without_punctuation(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let digit = |place: Option<&char>| place.is_some_and(char::is_ascii_digit);
    let thousands = letters
        .windows(3)
        .any(|three| three[1] == ',' && digit(three.first()) && digit(three.last()));
    let mut out = text.to_owned();
    for mark in PUNCTUATION {
        let edge = text.contains(&format!("{mark} ")) || text.contains(&format!(" {mark}"));
        out = match edge || thousands {
            true => out.replace(mark, ""),
            false => out.replace(mark, " "),
        };
    }
    let letters: Vec<char> = out.chars().collect();
    let kept = letters.iter().enumerate();
    // A point before a digit is part of a number.
    let kept = kept.filter(|&(place, &letter)| letter != '.' || digit(letters.get(place + 1)));
    kept.map(|(_, letter)| letter).collect()
}

/// The official list, as pairs of a word and what takes its place; without the entries that change nothing, and those with capital
/// letters (`Im`), which are sought in lower case and so never found.
const CONTRACTIONS: &str = "
    aint ain't  arent aren't  cant can't  couldve could've  couldnt couldn't  couldn'tve couldn't've  couldnt've couldn't've
    didnt didn't  doesnt doesn't  dont don't  hadnt hadn't  hadnt've hadn't've  hadn'tve hadn't've  hasnt hasn't  havent haven't
    hed he'd  hed've he'd've  he'dve he'd've  hes he's  howd how'd  howll how'll  hows how's  isnt isn't  itd it'd  itd've it'd've
    it'dve it'd've  itll it'll  maam ma'am  mightnt mightn't  mightnt've mightn't've  mightn'tve mightn't've  mightve might've
    mustnt mustn't  mustve must've  neednt needn't  notve not've  oclock o'clock  oughtnt oughtn't  ow's'at 'ow's'at
    'ows'at 'ow's'at  'ow'sat 'ow's'at  shant shan't  shed've she'd've  she'dve she'd've  shouldve should've  shouldnt shouldn't
    shouldnt've shouldn't've  shouldn'tve shouldn't've  somebody'd somebodyd  somebodyd've somebody'd've
    somebody'dve somebody'd've  somebodyll somebody'll  somebodys somebody's  someoned someone'd  someoned've someone'd've
    someone'dve someone'd've  someonell someone'll  someones someone's  somethingd something'd  somethingd've something'd've
    something'dve something'd've  somethingll something'll  thats that's  thered there'd  thered've there'd've
    there'dve there'd've  therere there're  theres there's  theyd they'd  theyd've they'd've  they'dve they'd've  theyll they'll
    theyre they're  theyve they've  twas 'twas  wasnt wasn't  wed've we'd've  we'dve we'd've  weve we've  werent weren't
    whatll what'll  whatre what're  whats what's  whatve what've  whens when's  whered where'd  wheres where's  whereve where've
    whod who'd  whod've who'd've  who'dve who'd've  wholl who'll  whos who's  whove who've  whyll why'll  whyre why're  whys why's
    wont won't  wouldve would've  wouldnt wouldn't  wouldnt've wouldn't've  wouldn'tve wouldn't've  yall y'all  yall'll y'all'll
    y'allll y'all'll  yall'd've y'all'd've  y'alld've y'all'd've  y'all'dve y'all'd've  youd you'd  youd've you'd've
    you'dve you'd've  youll you'll  youre you're  youve you've
";

/// "dont" as "don't".
fn contraction(word: &str) -> &str {
    static PLACES: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
        let words: Vec<&str> = CONTRACTIONS.split_whitespace().collect();
        words
            .chunks_exact(2)
            .map(|pair| (pair[0], pair[1]))
            .collect()
    });
    PLACES.get(word).copied().unwrap_or(word)
}
