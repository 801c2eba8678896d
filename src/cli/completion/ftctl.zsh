#compdef ftctl
_ftctl() {
    # The shell itself knows what ~ stands for.
    if [[ $PREFIX == (|*=)\~* ]]; then
        compset -P '*='
        _files
        return
    fi
    local -a found folders keys others
    found=("${(@ps:\v:)$(_CLAP_IFS=$'\v' _CLAP_COMPLETE_INDEX=$((CURRENT - 1)) FTCTL_COMPLETE=zsh \
        ftctl -- "${(@Q)words}" 2>/dev/null)}")
    found=("${(@)found:#}")
    folders=("${(@M)found:#*/}")
    keys=("${(@M)found:#*=}")
    others=("${(@)found:#*[/=]}")
    folders=("${(@)folders%/}")
    (($#folders)) && _describe -V 'values' folders -S '/' -r '/'
    (($#keys)) && _describe -V 'values' keys -S ''
    (($#others)) && _describe -V 'values' others
}
compdef _ftctl ftctl
