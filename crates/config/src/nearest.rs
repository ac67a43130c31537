//! The key that was probably meant.

/// The entry of `known` that `key` most likely stands for, if one is close.
///
/// Two names are close if they differ only in case, `-` and `_`; or by at most one typing slip (a
/// letter missing, added, changed, or two swapped) in every three letters; or if one contains the
/// other and the shorter has at least four letters. Of several close names the one with the fewest
/// slips is taken, and among equals the first.
///
/// ```
/// use regard_config::nearest;
/// let known = ["embedding", "hidden", "dropout", "beam"];
/// assert_eq!(nearest("hiden", &known), Some("hidden"));
/// assert_eq!(nearest("Drop-Out", &known), Some("dropout"));
/// assert_eq!(nearest("beam_size", &known), Some("beam"));
/// assert_eq!(nearest("colour", &known), None);
/// ```
pub fn nearest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| {
        let letters = text.chars().filter(char::is_ascii_alphanumeric);
        letters.map(|c| c.to_ascii_lowercase()).collect::<String>()
    };
    let key = plain(key);
    if key.is_empty() || key.len() > 200 {
        return None;
    }
    let by_slips = known
        .iter()
        .map(|&name| (strsim::osa_distance(&key, &plain(name)), name))
        .filter(|&(slips, name)| slips <= key.len().max(plain(name).len()).div_ceil(3).min(4))
        .filter(|&(slips, name)| slips < key.len().min(plain(name).len()))
        .min_by_key(|&(slips, _)| slips);
    let inside = || {
        known.iter().copied().find(|name| {
            let name = plain(name);
            let shorter = key.len().min(name.len());
            shorter >= 4 && (name.contains(&key) || key.contains(&name))
        })
    };
    by_slips.map(|(_, name)| name).or_else(inside)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let known = ["tokens", "sentences", "pool", "learning_rate", "lr_x"];
        assert_eq!(nearest("token", &known), Some("tokens"));
        assert_eq!(nearest("sentence", &known), Some("sentences"));
        assert_eq!(nearest("learningrate", &known), Some("learning_rate"));
        assert_eq!(nearest("leraning_rate", &known), Some("learning_rate"));
        assert_eq!(nearest("poll", &known), Some("pool"));
        assert_eq!(nearest("x", &known), None);
        assert_eq!(nearest("", &known), None);
        assert_eq!(nearest("💡", &known), None);
        assert_eq!(nearest("tokens", &[]), None);
    }
}
