/*
 * err.c: texts of the error codes, and the one translation from errno.
 *
 * The translation stands here, not beside each system call, so that "disk full" is SPACE everywhere.
 */
#include "trace/err.h"

#include <errno.h>

const char *roll_strerror(int err)
{
    switch (err) {
    case ROLL_OK:
        return "no error";
#define ROLL_ERR(name, value, text)                                                                                    \
    case ROLL_E_##name:                                                                                                \
        return text;
#include "trace/err.def"
#undef ROLL_ERR
    default:
        return "unknown error";
    }
}

int roll_err_from_errno(int number)
{
    switch (number) {
    case 0:
        return ROLL_OK;
    case ENOENT:
    case ENOTDIR:
        return ROLL_E_NOTFOUND;
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
        return ROLL_E_DENIED;
    case ENOSPC:
    case EDQUOT:
        return ROLL_E_SPACE;
    case EFBIG:
    case EMFILE:
    case ENFILE:
        return ROLL_E_LIMIT;
    case ENOMEM:
        return ROLL_E_NOMEM;
    case EINVAL:
    case ENAMETOOLONG:
        return ROLL_E_ARG;
    case EBUSY:
    case EEXIST:
    case ETXTBSY:
        return ROLL_E_BUSY;
    case EOPNOTSUPP:
    case ENOSYS:
        return ROLL_E_UNSUPPORTED;
    default:
        return ROLL_E_IO;
    }
}
