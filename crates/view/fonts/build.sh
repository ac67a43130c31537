#!/bin/sh
# Makes the bundled fonts from those of Debian 12 (fonts-noto-core 20201225-1, fonts-dejavu-core
# 2.37-6) with fontTools' pyftsubset. Run in this folder; the result is in the repository.
set -eu
noto=/usr/share/fonts/truetype/noto
subset() { # FILE UNICODES OUTPUT
    "${PYFTSUBSET:-pyftsubset}" "$1" --unicodes="$2" --output-file="$3" --layout-features='*' --no-hinting --notdef-outline \
        --desubroutinize --drop-tables+=DSIG --name-IDs='0,1,2,3,4,5,6,13,14'
}
# Latin with Vietnamese, Greek, Cyrillic, combining marks, punctuation, currency, letterlike.
text='U+0020-052F,U+1AB0-1AFF,U+1C80-1C8F,U+1D00-1DBF,U+1DC0-1EFF,U+1F00-1FFF,U+2000-206F,U+2070-20CF,U+2100-218F,U+25CC,U+2C60-2C7F,U+A640-A69F,U+A720-A7FF,U+AB30-AB6F,U+FB00-FB06,U+FFFD'
subset "$noto/NotoSans-Regular.ttf" "$text" NotoSans-Regular.ttf
subset "$noto/NotoSans-Bold.ttf" 'U+0020-024F,U+0300-036F,U+0370-03FF,U+0400-045F,U+1E00-1EFF,U+2000-206F,U+20A0-20BF' NotoSans-Bold.ttf
subset "$noto/NotoSansHebrew-Regular.ttf" '*' NotoSansHebrew-Regular.ttf
subset "$noto/NotoSansArabic-Regular.ttf" 'U+0020-007E,U+00A0,U+0600-06FF,U+0750-077F,U+08A0-08FF,U+200C-200F,U+25CC,U+FDF2,U+FDFA-FDFD' NotoSansArabic-Regular.ttf
subset /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf 'U+2190-21FF,U+2200-22FF,U+2300-2311,U+2423,U+2500-259F,U+25A0-25FF,U+2600-266F,U+2713-2718,U+0530-058F,U+10A0-10FF' DejaVuSans-Symbols.ttf
ls -l ./*.ttf
