# The program is asked for whole words. bash takes them apart at the characters of COMP_WORDBREAKS, such as = and :, and puts the
# answer in the place of the last part.
_ftctl() {
    local line=${COMP_LINE:0:COMP_POINT} blank part plain before= quotes= i
    local -a words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        blank=${line%%[![:space:]]*}
        line=${line#"$blank"}
        part=${COMP_WORDS[i]}
        if ((i == COMP_CWORD)); then part=$line; fi
        line=${line#"$part"}
        if ((i == 0)) || [[ -n $blank ]]; then words+=(""); fi
        before=${words[${#words[@]} - 1]}
        plain=${part//[\"\'\\]/}
        words[${#words[@]} - 1]+=$plain
    done
    if [[ $part =~ ^[=:@]+$ ]]; then before+=$part; fi
    if compopt +o nospace 2>/dev/null; then quotes=yes; fi
    IFS=$'\v' read -r -d '' -a COMPREPLY < <(
        _CLAP_IFS=$'\v' _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) FTCTL_QUOTES=$quotes FTCTL_COMPLETE=bash \
            ftctl -- "${words[@]}" 2>/dev/null
    )
    for i in "${!COMPREPLY[@]}"; do
        COMPREPLY[i]=${COMPREPLY[i]#"$before"}
        # bash quotes names of files only.
        if [[ -n $quotes && ${COMPREPLY[i]} == *[!a-zA-Z0-9._/+@%=:,-]* ]]; then compopt -o filenames; fi
    done
    if [[ -n $quotes && ${COMPREPLY-} =~ [=/:]$ ]]; then compopt -o nospace; fi
}
if [[ ${BASH_VERSINFO[0]} -eq 4 && ${BASH_VERSINFO[1]} -ge 4 || ${BASH_VERSINFO[0]} -gt 4 ]]; then
    complete -o nospace -o bashdefault -o nosort -F _ftctl ftctl
else
    complete -o nospace -o bashdefault -F _ftctl ftctl
fi
