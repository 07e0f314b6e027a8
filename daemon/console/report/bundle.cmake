# bundle.cmake: the modules of the web page as one script, its style and its frame, for reports.
#
#   cmake -DWEB=dashboards/web -DRECORDED=dashboards/report -DOUT=FOLDER -P bundle.cmake
#
# A page that is opened from a file may load no module, so each module becomes a function whose result holds what it
# exports. Where the page's live.js asks a daemon, dashboards/report/recorded.js takes its place. What is not of the
# plain form that the page's modules have stops the build. A bundler from npm was rejected: the page has no build step,
# and its modules are few and plain.
cmake_minimum_required(VERSION 3.25)

set(script "")
function(add_module name)
  get_property(state GLOBAL PROPERTY state_${name})
  if(state STREQUAL "whole")
    return()
  elseif(state STREQUAL "open")
    message(FATAL_ERROR "${name}.js: modules import each other in a circle")
  endif()
  set_property(GLOBAL PROPERTY state_${name} open)
  set(path ${WEB}/js/${name}.js)
  if(name STREQUAL "live")
    set(path ${RECORDED}/recorded.js)
  endif()
  file(READ ${path} text)
  string(REGEX MATCHALL "\nimport {[^}]*} from \"\\./[a-z_]+\\.js\"" imports "${text}")
  foreach(import IN LISTS imports)
    string(REGEX REPLACE "^.*\"\\./([a-z_]+)\\.js\"$" "\\1" other "${import}")
    add_module(${other})
    if(import MATCHES "[{,] *[A-Za-z_]+ as ")
      message(FATAL_ERROR "${path}: a name is imported as another one")
    endif()
  endforeach()
  string(REGEX REPLACE "\nimport ({[^}]*}) from \"\\./([a-z_]+)\\.js\";" "\nconst \\1 = module_\\2;" text "${text}")
  string(REGEX MATCHALL "\nexport (async )?(function|class|const) [A-Za-z_0-9]+" exports "${text}")
  list(TRANSFORM exports REPLACE "^.* ([A-Za-z_0-9]+)$" "\\1")
  list(JOIN exports ", " exports)
  string(REGEX REPLACE "\nexport (async |function |class |const )" "\n\\1" text "${text}")
  if("${text}" MATCHES "\n(import|export)[ {]" OR "${text}" MATCHES "</script|<!--")
    message(FATAL_ERROR "${path}: an import or export of another form, or what ends a script in HTML: ${CMAKE_MATCH_0}")
  endif()
  get_property(script GLOBAL PROPERTY script)
  string(APPEND script "const module_${name} = (() => {\n${text}\nreturn {${exports}};\n})();\n")
  set_property(GLOBAL PROPERTY script "${script}")
  set_property(GLOBAL PROPERTY state_${name} whole)
endfunction()

add_module(main)
get_property(script GLOBAL PROPERTY script)
file(WRITE ${OUT}/report.js "\"use strict\";\n(() => {\n${script}})();\n")

file(READ ${WEB}/page.css style)
file(READ ${RECORDED}/report.css own)
file(WRITE ${OUT}/report.css "${style}${own}")
if("${style}${own}" MATCHES "</style|url\\(|@import")
  message(FATAL_ERROR "the style ends itself, or fetches something")
endif()

file(READ ${WEB}/index.html frame)
string(REGEX REPLACE "^.*<body>\n(.*)</body>.*$" "\\1" frame "${frame}")
string(REGEX REPLACE "<noscript>[^<]*</noscript>" "" frame "${frame}")
if("${frame}" MATCHES "<(script|link|body)")
  message(FATAL_ERROR "the frame of the page holds more than elements")
endif()
file(WRITE ${OUT}/report_body.html "${frame}")

file(SHA256 ${OUT}/report.js script_hash)
file(SHA256 ${OUT}/report.css style_hash)
file(WRITE ${OUT}/report_hashes.h
     "#define ROLL_REPORT_SCRIPT_SHA256 \"${script_hash}\"\n#define ROLL_REPORT_STYLE_SHA256  \"${style_hash}\"\n")
