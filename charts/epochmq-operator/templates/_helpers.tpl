{{- define "epochmq.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "epochmq.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "epochmq.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "epochmq.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "epochmq.selector" -}}
app.kubernetes.io/name: epochmq-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "epochmq.labels" -}}
{{ include "epochmq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: epochmq
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "epochmq.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "epochmq.fullname" .) -}}
{{- end -}}

{{- define "epochmq.tag" -}}
{{- .Values.image.tag | default .Chart.AppVersion -}}
{{- end -}}

{{/* The registry, with a slash; empty for the default one of the nodes. */}}
{{- define "epochmq.registry" -}}
{{- with .Values.image.registry -}}
{{- printf "%s/" (trimSuffix "/" .) -}}
{{- end -}}
{{- end -}}

{{- define "epochmq.image" -}}
{{- with .Values.image.digest -}}
{{- printf "%s%s@%s" (include "epochmq.registry" $) $.Values.image.repository . -}}
{{- else -}}
{{- printf "%s%s:%s" (include "epochmq.registry" .) .Values.image.repository (include "epochmq.tag" .) -}}
{{- end -}}
{{- end -}}

{{/* The image of the groups' pods of this name. One that the values name is whole: it has its own registry. */}}
{{- define "epochmq.groupImage" -}}
{{- $default := printf "%sepochmq/%s:%s" (include "epochmq.registry" .root) .name (include "epochmq.tag" .root) -}}
{{- .given | default $default -}}
{{- end -}}

{{/* The namespaces that the operator manages, as JSON; empty for all. */}}
{{- define "epochmq.namespaces" -}}
{{- if eq .Values.scope "namespaced" -}}
{{- .Values.watchNamespaces | default (list .Release.Namespace) | toJson -}}
{{- else -}}
{{- if .Values.watchNamespaces -}}
{{- fail "watchNamespaces needs scope: namespaced; set that, or leave watchNamespaces empty" -}}
{{- end -}}
[]
{{- end -}}
{{- end -}}

{{/* The operator's rights in the namespaces that it manages. */}}
{{- define "epochmq.rules" -}}
- apiGroups: [epochmq.io]
  resources: [brokergroups]
  verbs: [get, list, watch, patch]
- apiGroups: [epochmq.io]
  resources: [controllergroups]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [epochmq.io]
  resources: [brokergroups/status, controllergroups/status]
  verbs: [patch]
- apiGroups: [epochmq.io]
  resources: [brokergroups/finalizers, controllergroups/finalizers]
  verbs: [update]
{{- if .Values.features.audits }}
- apiGroups: [epochmq.io]
  resources: [brokergroupaudits]
  verbs: [get, list, watch]
- apiGroups: [epochmq.io]
  resources: [brokergroupaudits/status]
  verbs: [patch]
- apiGroups: [epochmq.io]
  resources: [brokergroupaudits/finalizers]
  verbs: [update]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshots]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [create, patch]
{{- end }}
{{- if .Values.features.backups }}
- apiGroups: [epochmq.io]
  resources: [brokergroupbackups]
  verbs: [get, list, watch]
- apiGroups: [epochmq.io]
  resources: [brokergroupbackups/status]
  verbs: [patch]
- apiGroups: [epochmq.io]
  resources: [brokergroupbackups/finalizers]
  verbs: [update]
{{- end }}
{{- if and (or .Values.features.backups .Values.features.restores) (not .Values.features.audits) }}
- apiGroups: [""]
  resources: [pods]
  verbs: [create, patch]
{{- end }}
{{- with include "epochmq.entities" . | fromJsonArray }}
- apiGroups: [epochmq.io]
  resources: {{ toJson . }}
  verbs: [get, list, watch, patch]
- apiGroups: [epochmq.io]
  resources: [{{ range $i, $one := . }}{{ if $i }}, {{ end }}{{ $one }}/status{{ end }}]
  verbs: [patch]
{{- end }}
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch]
{{- if .Values.features.replaceReplicas }}
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [delete]
{{- end }}
{{- if .Values.features.restores }}
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- with .Values.adminSecrets }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson . }}
  verbs: [get]
{{- end }}
{{- if has "*" .Values.readSecrets }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- else if .Values.readSecrets }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson .Values.readSecrets }}
  verbs: [get]
{{- end }}
{{- end -}}

{{/* The plurals of the enabled kinds that describe topics and users, as JSON. */}}
{{- define "epochmq.entities" -}}
{{- $found := list -}}
{{- if .Values.features.topics }}{{ $found = append $found "topics" }}{{ end -}}
{{- if .Values.features.users }}{{ $found = append $found "users" }}{{ end -}}
{{- toJson $found -}}
{{- end -}}

{{/* The rights for removing finalizers. */}}
{{- define "epochmq.releaseRules" -}}
- apiGroups: [epochmq.io]
  resources: [brokergroups, controllergroups, topics, users]
  verbs: [list, patch]
{{- end -}}

{{- define "epochmq.releaseHook" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "epochmq.podSecurity" -}}
{{- $made := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if ne (toString .Values.podUser) "assigned" -}}
{{- $user := int64 .Values.podUser -}}
{{- $made = merge $made (dict "runAsUser" $user "runAsGroup" $user "fsGroup" $user) -}}
{{- end -}}
{{- toYaml (mergeOverwrite $made .Values.podSecurityContext) -}}
{{- end -}}

{{- define "epochmq.containerSecurity" -}}
{{- $made := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (mergeOverwrite $made .Values.securityContext) -}}
{{- end -}}
