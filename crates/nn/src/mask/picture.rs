//! A mask as a small picture: one line for each query, `■` where a key is seen, `·` where not.

use std::fmt::{self, Display};

use super::{Grid, Mask};

impl Mask {
    /// The mask of batch row 0 and head 0 over `queries` and `keys`: one line for each query, one
    /// character for each key.
    ///
    /// A mask that is bound to other sizes (such as padding) says so in place of a picture.
    ///
    /// ```
    /// use regard_nn::mask::Mask;
    /// assert_eq!(Mask::causal().picture(3, 3), "■··\n■■·\n■■■\n");
    /// ```
    pub fn picture(&self, queries: usize, keys: usize) -> String {
        self.picture_of(&Grid {
            batch: self.0.batch(),
            heads: 1,
            queries,
            keys,
            ..Grid::default()
        })
    }

    /// The same for batch row 0 and head 0 of `grid`; if there are none, it says so.
    pub fn picture_of(&self, grid: &Grid) -> String {
        if let Err(error) = self.check(grid) {
            return format!("{error}\n");
        }
        if grid.batch == 0 || grid.heads == 0 {
            return "a mask of no sentences or no heads\n".to_owned();
        }
        let mut picture = String::new();
        for query in 0..grid.queries {
            let row = self.row(grid, 0, 0, query);
            picture.extend(row.iter().map(|&seen| if seen { '■' } else { '·' }));
            picture.push('\n');
        }
        picture
    }
}

/// The picture over 8 queries and 8 keys; choose the sizes with [`Mask::picture`].
impl Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.picture(8, 8))
    }
}
