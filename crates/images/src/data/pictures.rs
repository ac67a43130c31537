//! The images of a data set, of which memory holds as many as it may.

use std::borrow::Cow;
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Loader, Loading};
use crate::transform::Sums;
use crate::{Image, ImagesError, Normalize};

/// Images by their numbers. The first ones are kept, up to a number of bytes; the others are read again from where they came whenever
/// they are asked for, on other threads and ahead of their use if [`ahead`](Self::ahead) was told of it.
///
/// ```
/// use regard_images::{Image, data::{Loading, Pictures}};
/// let read = |i: usize| Ok((Image::new(2, 2, 1, vec![i as u8; 4])?, i % 2));
/// let (pictures, labels, skipped) = Pictures::read(5, &Loading::default(), 8, read)?;
/// assert_eq!((pictures.len(), pictures.kept(), labels), (5, 2, vec![0, 1, 0, 1, 0]));
/// assert_eq!(pictures.get(3)?.pixels(), [3; 4]);
/// # assert_eq!(skipped, 0);
/// # Ok::<(), regard_images::ImagesError>(())
/// ```
#[derive(Debug, Default)]
pub struct Pictures {
    all: Vec<Picture>,
    /// `None` where all are kept.
    again: Option<Arc<Again>>,
}

#[derive(Debug)]
enum Picture {
    Kept(Image),
    /// What was found as it was read first.
    Left {
        /// Its number where it comes from.
        number: usize,
        /// Channels, height and width.
        form: [usize; 3],
        sums: Sums,
    },
}

type Read = dyn Fn(usize) -> Result<Image, ImagesError> + Send + Sync;

/// Where images are read again.
struct Again {
    read: Box<Read>,
    threads: usize,
    /// Those that are being read already, by their numbers.
    ahead: Mutex<Option<(Vec<usize>, Loader<Image>)>>,
}

impl Debug for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Again").finish_non_exhaustive()
    }
}

impl Again {
    fn start(self: &Arc<Self>, numbers: Vec<usize>) -> Result<Loader<Image>, ImagesError> {
        let loading = Loading {
            threads: self.threads,
            ..Loading::default()
        };
        let again = self.clone();
        Loader::start(numbers, &loading, move |number| (again.read)(number))
    }
}

impl Pictures {
    /// Reads what `read` gives for the numbers below `count`, an image and what goes with it, as `loading` says. Images are kept until
    /// they are more than `most` bytes. Gives the images, what goes with them, and how many were left out as broken.
    ///
    /// # Errors
    /// Those of [`Loader::start`] and of `read`.
    pub fn read<T: Send + 'static>(
        count: usize,
        loading: &Loading,
        most: usize,
        read: impl Fn(usize) -> Result<(Image, T), ImagesError> + Send + Sync + 'static,
    ) -> Result<(Self, Vec<T>, usize), ImagesError> {
        let read = Arc::new(read);
        let first = read.clone();
        let mut loader = Loader::start((0..count).collect(), loading, move |number| {
            let (image, rest) = first(number)?;
            Ok((number, image, rest))
        })?;
        let (mut all, mut others, mut bytes) = (vec![], vec![], 0_usize);
        for one in loader.by_ref() {
            let (number, image, rest) = one?;
            bytes = bytes.saturating_add(image.pixels().len());
            all.push(match bytes <= most {
                true => Picture::Kept(image),
                false => Picture::left(number, &image)?,
            });
            others.push(rest);
        }
        let skipped = loader.skipped().len();
        // What `read` holds goes where all are kept.
        let again = (bytes > most).then(|| {
            Arc::new(Again {
                read: Box::new(move |number| Ok(read(number)?.0)),
                threads: loading.threads,
                ahead: Mutex::new(None),
            })
        });
        Ok((Self { all, again }, others, skipped))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many are in memory.
    pub fn kept(&self) -> usize {
        let kept = |one: &&Picture| matches!(one, Picture::Kept(_));
        self.all.iter().filter(kept).count()
    }

    /// Channels, height and width of the first one.
    pub fn form(&self) -> Option<[usize; 3]> {
        self.all.first().map(|first| match first {
            Picture::Kept(image) => [image.channels(), image.height(), image.width()],
            Picture::Left { form, .. } => *form,
        })
    }

    /// Mean and deviation of the pixels of the first `most`.
    ///
    /// # Errors
    /// Those of [`Normalize::of`].
    pub fn normalize(&self, most: usize) -> Result<Normalize, ImagesError> {
        let mut sums = Sums::default();
        for one in self.all.iter().take(most) {
            match one {
                Picture::Kept(image) => sums.add(image)?,
                Picture::Left { sums: own, .. } => sums.join(own)?,
            }
        }
        sums.normalize()
    }

    /// Shows all images in their order to `look`, with their numbers.
    ///
    /// # Errors
    /// An image that cannot be read any more.
    pub fn each(&self, mut look: impl FnMut(usize, &Image)) -> Result<(), ImagesError> {
        let rows: Vec<usize> = (0..self.len()).collect();
        let mut left = self.loader(self.left(&rows))?;
        for row in rows {
            look(row, &*self.next(row, &mut left)?);
        }
        Ok(())
    }

    /// Begins to read those of `rows` that are not kept, which are the next to be asked for together.
    ///
    /// # Errors
    /// [`ImagesError::Thread`] if the system has no thread.
    ///
    /// # Panics
    /// For a number that there is not.
    pub fn ahead(&self, rows: &[usize]) -> Result<(), ImagesError> {
        if let (Some(again), numbers @ [_, ..]) = (&self.again, &self.left(rows)[..]) {
            let loader = again.start(numbers.to_vec())?;
            let mut ahead = again.ahead.lock().unwrap_or_else(PoisonError::into_inner);
            *ahead = Some((numbers.to_vec(), loader));
        }
        Ok(())
    }

    /// The images of `rows`, in their order.
    ///
    /// # Errors
    /// An image that cannot be read any more.
    ///
    /// # Panics
    /// For a number that there is not.
    pub fn all(&self, rows: &[usize]) -> Result<Vec<Cow<'_, Image>>, ImagesError> {
        let mut left = self.loader(self.left(rows))?;
        rows.iter().map(|&row| self.next(row, &mut left)).collect()
    }

    /// What reads the images of these numbers: what does so already, if it was told of them ahead.
    fn loader(&self, numbers: Vec<usize>) -> Result<Option<Loader<Image>>, ImagesError> {
        let Some(again) = self.again.as_ref().filter(|_| !numbers.is_empty()) else {
            return Ok(None);
        };
        let mut ahead = again.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        match ahead.take_if(|(of, _)| *of == numbers) {
            Some((_, loader)) => Ok(Some(loader)),
            None => Ok(Some(again.start(numbers)?)),
        }
    }

    /// The image at `row`, which is the next that `left` gives if it is not kept.
    fn next(
        &self,
        row: usize,
        left: &mut Option<Loader<Image>>,
    ) -> Result<Cow<'_, Image>, ImagesError> {
        match &self.all[row] {
            Picture::Kept(image) => Ok(Cow::Borrowed(image)),
            Picture::Left { .. } => {
                let next = left.as_mut().and_then(Iterator::next);
                let next = next.expect("there is one for each image that is not kept");
                Ok(Cow::Owned(next?))
            }
        }
    }

    /// The image of this number.
    ///
    /// # Errors
    /// One that cannot be read any more.
    ///
    /// # Panics
    /// For a number that there is not.
    pub fn get(&self, row: usize) -> Result<Cow<'_, Image>, ImagesError> {
        Ok(self.all(&[row])?.swap_remove(0))
    }

    /// Those for whose number `is_taken` is true, in their order, and the others stay.
    pub fn split_off(&mut self, mut is_taken: impl FnMut(usize) -> bool) -> Self {
        let (mut stay, mut taken) = (vec![], vec![]);
        for (row, one) in std::mem::take(&mut self.all).into_iter().enumerate() {
            match is_taken(row) {
                true => taken.push(one),
                false => stay.push(one),
            }
        }
        self.all = stay;
        Self {
            all: taken,
            again: self.again.clone(),
        }
    }

    /// The numbers, where they come from, of those of `rows` that are not kept.
    fn left(&self, rows: &[usize]) -> Vec<usize> {
        let number = |&row: &usize| match self.all[row] {
            Picture::Kept(_) => None,
            Picture::Left { number, .. } => Some(number),
        };
        rows.iter().filter_map(number).collect()
    }
}

impl Picture {
    fn left(number: usize, image: &Image) -> Result<Self, ImagesError> {
        let mut sums = Sums::default();
        sums.add(image)?;
        Ok(Self::Left {
            number,
            form: [image.channels(), image.height(), image.width()],
            sums,
        })
    }
}
